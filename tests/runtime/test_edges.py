"""Values taken apart: names and order are fixed, every bit counts, and the first place that differs is told."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stretto.runtime.edges import array_of, describe, first_place, leaf_hash, leaves_of
from stretto.testing import make_group
from stretto.types import Batch, Column, Credit, Metric, StepReport


@dataclass(frozen=True)
class Own:
    """A value of a user's node."""

    weights: torch.Tensor
    rates: dict[str, float]
    other: object = None


def names(value: object) -> list[str]:
    return [name for name, _ in leaves_of(value)]


def test_values_of_every_type_come_apart_by_name():
    batch = Batch(groups=(make_group(3, (1.0, 0.0)),))
    column = Column.per_token("advantages", batch, np.zeros(batch.num_tokens, np.float32))
    assert names(column) == ["advantages"]
    assert names(Credit(advantages=column)) == ["advantages", "returns"]
    assert names({"x": column}) == ["x.advantages"]
    assert names(StepReport(metrics={"loss": Metric("mean", 1.0)})) == ["metrics.loss"]
    assert names((1, "a", None)) == ["0", "1", "2"]
    assert names(Own(weights=torch.ones(2), rates={"a": 1.0})) == ["weights", "rates.a", "other"]
    assert dict(leaves_of(OrderedDict(a=object())))["a"] == "a object"
    rows = names(batch)
    assert rows[:2] == ["draw 3 sample 0.tokens", "draw 3 sample 0.mask"] and rows[-1] == "draw 3 sample 1.reward"


def test_tensors_of_torch_are_arrays_with_the_same_numbers():
    assert array_of(torch.tensor([1.5, -2.0], dtype=torch.bfloat16)).tolist() == [1.5, -2.0]
    assert array_of(torch.ones(3, requires_grad=True)).dtype == np.float32
    assert array_of("text") is None and array_of(np.float32(2)).shape == ()


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=8), st.data())
def test_the_first_place_is_the_first_bit_that_differs(numbers, data):
    a = np.array(numbers, np.float32)
    b = a.copy()
    assert leaf_hash(a) == leaf_hash(b)
    place = data.draw(st.integers(0, len(numbers) - 1))
    b.view(np.uint32)[place] ^= 1
    assert leaf_hash(a) != leaf_hash(b)
    assert first_place(a, b)[0] == f"[{place}]"


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ("1.0", "2.0", ("", "1.0", "2.0")),
        (np.zeros((2, 2)), np.array([[0, 0], [0, 3.0]]), ("[1, 1]", "0.0", "3.0")),
        (np.array(1.0), np.array(2.0), ("[]", "1.0", "2.0")),
        (np.array([1, 2, 3]), np.array([1, 5]), ("[1]", "2", "5")),
        (np.array([1, 2, 3]), np.array([1, 2]), ("", "int64 [3]", "int64 [2]")),
        (np.zeros(2), np.zeros(2, np.float32), ("", "float64 [2]", "float32 [2]")),
        (np.array([0.0]), np.array([-0.0]), ("[0]", "0.0", "-0.0")),
    ],
)
def test_where_two_leaves_part_is_told_with_both_values(a, b, told):
    assert first_place(a, b) == told


def test_a_value_is_described_in_a_few_words():
    group = make_group(0, (1.0, 0.0))
    batch = Batch(groups=(group,))
    assert describe(batch).startswith("Batch of 1 group, 2 trajectories, ")
    assert describe((group,)).startswith("1 Group, 2 trajectories, ")
    assert describe(group).startswith("Group of draw 0, 2 trajectories")
    column = Column.per_trajectory("gain", batch, np.zeros(2, np.float32))
    assert describe(column) == "Column: gain float32 [2]"
    assert describe(StepReport(metrics={"a": Metric("sum", 1)})) == "StepReport: 1 value"
    assert describe({str(i): np.zeros(1) for i in range(6)}).endswith("3 float64 [1], 2 more tensors")
