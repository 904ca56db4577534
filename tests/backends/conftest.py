"""Batches of random trajectories, and small model folders of every supported family."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
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

from stretto.types import Batch, Group, Key, Prompt, Span, Trajectory

VOCAB = 40
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=False)),
}
OTHERS = {
    # Windows shorter than the rows of the tests, and layers of both kinds.
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    "gemma2": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 6,
        "final_logit_softcapping": 2.0,
        "attn_logit_softcapping": 1.5,
    },
    "mistral": {"sliding_window": 6, "tie_word_embeddings": False},
    "phi3": {"tie_word_embeddings": False},
    "olmo2": {"tie_word_embeddings": False},
    "gpt_neox": {"tie_word_embeddings": False},
    "gpt2": {},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 2.0, "attention_multiplier": 0.2, "embedding_multiplier": 3.0},
}
"""Families without a forward of Stretto's own."""


def _other(family):
    sizes = {name: value for name, value in SHAPE.items() if name != "head_dim" or family.startswith("gemma")}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, **OTHERS[family]))


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per family, its biases and norms made unequal to what they start as."""
    folders = {}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        for family in (*FAMILIES, *OTHERS):
            model = FAMILIES[family]() if family in FAMILIES else _other(family)
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(torch.randn_like(p) * 0.05)
            folders[family] = tmp_path_factory.mktemp(family)
            model.save_pretrained(folders[family])
    return folders


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., Batch]:
    """Groups whose siblings share a prompt; masks may have gaps, and a row may end in tokens no one wrote."""

    def make(
        seed: int = 0, *, groups: int = 3, siblings: int = 4, longest: int = 12, gaps: bool = True, temperature=1.0
    ) -> Batch:
        rng = np.random.default_rng(seed)
        made = []
        for draw in range(groups):
            prompt = np.concatenate([[1], rng.integers(3, VOCAB, rng.integers(0, longest))]).astype(np.int32)
            rows = []
            for sample in range(siblings):
                written = int(rng.integers(1, longest))
                mask = (rng.random(written) < 0.8).astype(np.uint8) if gaps else np.ones(written, np.uint8)
                ids = np.concatenate([prompt, rng.integers(2, VOCAB, written)]).astype(np.int32)
                mask = np.concatenate([np.zeros(len(prompt), np.uint8), mask])
                rows.append(
                    Trajectory(
                        key=Key(draw, sample),
                        token_ids_T=ids,
                        mask_T=mask,
                        logprobs_T=(-rng.random(len(ids)) * mask).astype(np.float32),
                        versions=(Span(0, int(mask.sum())),),
                        finish="stop",
                        temperature=temperature,
                        reward=float(rng.integers(0, 2)),
                    )
                )
            made.append(
                Group(draw=draw, prompt=Prompt(uid=str(draw), text="", token_ids=prompt), trajectories=tuple(rows))
            )
        return Batch(groups=tuple(made))

    return make
