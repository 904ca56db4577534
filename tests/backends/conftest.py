"""Batches of random trajectories, and small model folders of every supported family."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

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


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per family, its biases and norms made unequal to what they start as."""
    folders = {}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        for family, build in FAMILIES.items():
            model = build()
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
