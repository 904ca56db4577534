"""Builders that the store's tests share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stretto.store import RunSpec, RunStore
from stretto.types import Group, Key, Prompt, Span, Trajectory

GroupMaker = Callable[..., Group]


@pytest.fixture(scope="session")
def make_group() -> GroupMaker:
    def make(draw: int, n: int = 2, tokens: int = 5, reward: float = 1.0) -> Group:
        rng = np.random.default_rng(draw)
        prompt = Prompt(uid=f"p{draw}", text="1+2=", token_ids=np.arange(3, dtype=np.int32), data={"answer": "3"})
        trajectories = tuple(
            Trajectory(
                key=Key(draw, sample),
                token_ids_T=rng.integers(0, 100, tokens).astype(np.int32),
                mask_T=(np.arange(tokens) >= 3).astype(np.uint8),
                logprobs_T=np.where(np.arange(tokens) >= 3, -rng.random(tokens), 0).astype(np.float32),
                versions=(Span(0, max(0, tokens - 3)),),
                finish="stop",
                text="3",
                rewards={"exact": reward},
                reward=reward,
            )
            for sample in range(n)
        )
        return Group(draw=draw, prompt=prompt, trajectories=trajectories)

    return make


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., RunStore]:
    def new(hint: str = "quick", **fields: object) -> RunStore:
        spec = RunSpec(**{"hint": hint, "config": {"seed": 3}, "seed": 3, "steps": 10, **fields})
        return RunStore.create(tmp_path / "runs", spec)

    return new
