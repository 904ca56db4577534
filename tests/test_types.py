"""The nouns: order, columns, metrics."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import nearest
from stretto.testing import make_batch, make_group, same
from stretto.types import Batch, Column, Key, Metric, Trajectory, merge_metrics


def test_a_batch_is_in_key_order_whatever_the_order_of_its_groups():
    groups = make_batch(3).groups
    batch = Batch(groups=groups[::-1])
    assert batch.keys == tuple(sorted(batch.keys))
    assert batch.num_tokens == sum(len(t.token_ids_T) for g in groups for t in g.trajectories)
    assert batch.num_written == int(batch.mask.sum())


def test_columns_know_their_rows():
    batch = make_batch(2, length=3)
    tokens = Column.per_token("x", batch, np.arange(batch.num_tokens))
    assert tokens.row(1).tolist() == list(range(6, 12))
    assert Column.per_trajectory("y", batch, np.arange(4)).row(3) == 3


def test_judged_changes_the_rewards_and_nothing_else():
    trajectory = replace(make_group().trajectories[0], info={"a": 1}, temperature=0.5, text="x")
    judged = trajectory.judged({"r": 2.0}, 2.0)
    kept = {f.name for f in fields(Trajectory)} - {"rewards", "reward"}
    assert all(getattr(judged, name) is getattr(trajectory, name) for name in kept)
    assert (judged.rewards, judged.reward) == ({"r": 2.0}, 2.0)


KINDS = st.sampled_from(["mean", "sum", "min", "max"])
NUMBERS = st.lists(st.tuples(st.integers(-100, 100), st.integers(1, 9)), min_size=1, max_size=6)


@given(kind=KINDS, values=NUMBERS, cut=st.integers(0, 6))
def test_metrics_reduce_the_same_however_they_are_cut(kind, values, cut):
    # pitfall 29
    parts = [{"m": Metric(kind, total, count)} for total, count in values]
    whole = merge_metrics(parts)["m"]
    halves = [merge_metrics(parts[:cut]), merge_metrics(parts[cut:])]
    assert merge_metrics(halves)["m"] == whole
    expected = {
        "mean": sum(t for t, _ in values) / sum(c for _, c in values),
        "sum": sum(t for t, _ in values),
        "min": min(t for t, _ in values),
        "max": max(t for t, _ in values),
    }[kind]
    assert whole.value == pytest.approx(expected)


def test_keys_are_ordered_by_draw_then_sample():
    assert sorted([Key(1, 0), Key(0, 1), Key(0, 0)]) == [Key(0, 0), Key(0, 1), Key(1, 0)]


def test_same_sees_a_changed_bit():
    group = make_group()
    other = replace(group.trajectories[0], logprobs_T=np.nextafter(group.trajectories[0].logprobs_T, np.float32(9)))
    assert same(group, make_group())
    assert not same(group, replace(group, trajectories=(other, *group.trajectories[1:])))


def test_nearest_names_the_nearest():
    assert nearest("quikstart", ["quickstart", "ppo"]) == " Did you mean 'quickstart'?"
    assert nearest("zzz", ["b", "a"]) == " Known: a, b."
