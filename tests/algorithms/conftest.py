"""Golden cases by file, and batches from masks."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stretto.types import Batch, Group, Key, Prompt, Trajectory

GOLDEN = Path(__file__).parents[1] / "golden" / "data"


@pytest.fixture(scope="session")
def golden() -> Callable[..., list[dict]]:
    """Cases of a file whose variant is one of those named."""

    def cases(file: str, *variants: str) -> list[dict]:
        found = [c for c in json.loads((GOLDEN / f"{file}.json").read_text())["cases"] if c["variant"] in variants]
        assert found, (file, variants)
        return found

    return cases


@pytest.fixture(scope="session")
def check() -> Callable[..., None]:
    """Compare a result with what a case expects under ``key``, in the tolerance of the case."""

    def compare(case: dict, key: str, ours: object) -> None:
        np.testing.assert_allclose(
            ours, case["expected"][key], rtol=case["rtol"], atol=case["atol"], err_msg=f"{case['name']}: {key}"
        )

    return compare


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., Batch]:
    """A batch with one trajectory per row of a mask, one group each unless draws are named."""

    def make(mask: list[list[int]], rewards: list[float] | None = None, draws: list[int] | None = None) -> Batch:
        groups: dict[int, list[Trajectory]] = {}
        for row, row_mask in enumerate(mask):
            draw = draws[row] if draws else row
            length = len(row_mask)
            groups.setdefault(draw, []).append(
                Trajectory(
                    key=Key(draw, row),
                    token_ids_T=np.arange(length, dtype=np.int32),
                    mask_T=np.asarray(row_mask, np.uint8),
                    logprobs_T=np.zeros(length, np.float32),
                    versions=(),
                    finish="stop",
                    reward=None if rewards is None else rewards[row],
                )
            )
        prompt = Prompt(uid="p", text="p", token_ids=np.zeros(1, np.int32))
        return Batch(groups=tuple(Group(draw=d, prompt=prompt, trajectories=tuple(ts)) for d, ts in groups.items()))

    return make
