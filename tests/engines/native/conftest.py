"""Tiny random models of many families, and engines that hold them; the same tests run for both forwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stretto.engines.native import NativeEngine
from stretto.roles import Completion, NamedTensor, Request

VOCAB = 97
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A random fp32 model whose logits are spread enough to be worth sampling from."""

    name: str
    model: Any
    forward: str = "auto"

    @property
    def own(self) -> bool:
        """Whether Stretto's own forward runs it, which is quick."""
        return self.name in MAKERS

    @property
    def config(self) -> dict[str, Any]:
        return self.model.config.to_dict()

    def tensors(self) -> list[NamedTensor]:
        return [NamedTensor(name=name, data=value) for name, value in self.model.state_dict().items()]

    async def publish(self, engine: NativeEngine, version: int = 0) -> NativeEngine:
        async with engine.update_weights(version, in_flight="drain") as sink:
            for tensor in self.tensors():
                sink.write(tensor)
        return engine

    async def engine(self, **settings: Any) -> NativeEngine:
        return await self.publish(self.empty_engine(**settings))

    def empty_engine(self, **settings: Any) -> NativeEngine:
        return NativeEngine(self.config, **{"slots": 8, "max_len": 128, "forward": self.forward, **settings})


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "max_position_embeddings": 4096,
        **more,
    }


MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**_sizes(num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True))
    ),
    "llama-gqa-biased-llama3": lambda: LlamaForCausalLM(
        LlamaConfig(
            **_sizes(
                num_attention_heads=4,
                num_key_value_heads=1,
                attention_bias=True,
                mlp_bias=True,
                rope_parameters=LLAMA3_ROPE,
            )
        )
    ),
    # As the quickstart's: sizes at which products of few rows go another way than those of many.
    "llama-wide": lambda: LlamaForCausalLM(
        LlamaConfig(**_sizes(hidden_size=128, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4))
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**_sizes(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True))
    ),
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(**_sizes(num_attention_heads=4, num_key_value_heads=2, head_dim=24, attention_bias=True))
    ),
}


OTHERS: dict[str, dict[str, Any]] = {
    # Windows and layers of both kinds, shorter than the sequences of the tests.
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24, "head_dim": 16},
    "gemma2": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24, "head_dim": 16},
    "mistral": {"sliding_window": 24},
    "phi3": {},
    "olmo2": {},
    "gpt_neox": {},
    "gpt2": {},
    "cohere": {},
    "granite": {"logits_scaling": 2.0, "attention_multiplier": 0.2, "embedding_multiplier": 3.0},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}
"""Families that only transformers' forward runs."""


def make_other(family: str) -> Any:
    config = AutoConfig.for_model(
        family,
        **{**_sizes(num_attention_heads=4, num_key_value_heads=2), **OTHERS[family]},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def make_tiny(name: str, seed: int = 0) -> Tiny:
    """A model by name; ``hf:`` before it asks for transformers' forward where Stretto has one of its own."""
    family = name.removeprefix("hf:")
    torch.manual_seed(seed)
    model = (MAKERS[family]() if family in MAKERS else make_other(family)).float().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            # Norms and biases away from 1 and 0, so that a forgotten one shows.
            value.normal_(1.0 if "norm" in key or "ln_" in key else 0.0, 0.15)
    return Tiny(name=name, model=model, forward="hf" if name.startswith("hf:") else "auto")


FEW = [*MAKERS, "gemma3_text"]
REST = ["hf:llama-gqa-biased-llama3", "hf:qwen3", *(name for name in OTHERS if name != "gemma3_text")]


@pytest.fixture(params=[*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)])
def tiny(request: pytest.FixtureRequest) -> Tiny:
    """Each family in turn."""
    return make_tiny(request.param)


@pytest.fixture(params=["llama", "gemma3_text", pytest.param("hf:llama", marks=pytest.mark.slow)])
def llama(request: pytest.FixtureRequest) -> Tiny:
    """One model of each forward, and one of another family, where any will do."""
    return make_tiny(request.param)


@pytest.fixture
def make() -> Callable[[str, int], Tiny]:
    """Models by name and seed."""
    return make_tiny


@pytest.fixture
def collect() -> Callable[..., Any]:
    """All completions of a request, by index."""

    async def run(engine: NativeEngine, request: Request) -> list[Completion]:
        return sorted([c async for c in engine.generate(request)], key=lambda c: c.index)

    return run
