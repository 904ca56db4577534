"""Aggregation weights: the worked example, tokens that are not kept, parts on several ranks, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.algorithms.aggregation import aggregation_weights, denominators
from stretto.errors import ConfigError
from stretto.types import Batch, Column

NORMS = {"token_sum_norm": 6.0, "seq_mean_token_sum_norm": 6.0}
ALL = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", *NORMS, "prompt_mean")
COUNTING = tuple(name for name in ALL if name not in ("token_mean", "token_sum_norm"))


@pytest.mark.parametrize(
    ("aggregate", "excluded", "included"),
    [
        ("token_mean", 8 / 6, None),
        ("seq_mean_token_mean", 1.5, 1.0),
        ("seq_mean_token_sum", 4.0, 8 / 3),
        ("token_sum_norm", 8 / 6, None),
        ("seq_mean_token_sum_norm", 4 / 6, 8 / 18),
        ("prompt_mean", 8 / 6, 4 / 6),
    ],
)
def test_weights_by_hand(batch_of, aggregate, excluded, included):
    batch = batch_of([[1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0], [0] * 6], draws=[0, 0, 1])
    losses = np.repeat([2.0, 1.0, 99.0], 6)

    def total(empty_rows):
        weights = aggregation_weights(batch, aggregate, norm=NORMS.get(aggregate), empty_rows=empty_rows)
        return float((weights.values * losses).sum())

    assert total("exclude") == pytest.approx(excluded)
    if included is not None:
        assert total("include") == pytest.approx(included)


@pytest.mark.parametrize("aggregate", ALL)
def test_a_batch_without_a_token_to_train_on_has_no_weights(batch_of, aggregate):
    for batch in (Batch(groups=()), batch_of([[0, 0], [0, 0]])):
        weights = aggregation_weights(batch, aggregate, norm=NORMS.get(aggregate)).values
        assert weights.shape == (batch.num_tokens,)
        assert not weights.any()


@given(mask=st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=5), min_size=1, max_size=4), data=st.data())
@pytest.mark.parametrize("aggregate", ALL)
def test_a_token_that_is_not_kept_is_a_token_that_was_not_written(batch_of, aggregate, mask, data):
    kept = data.draw(
        st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=5), min_size=len(mask), max_size=len(mask))
    )
    batch = batch_of(mask)
    keep = Column.per_token("keep", batch, np.ravel(kept).astype(np.float64))
    both = (np.asarray(mask) * np.asarray(kept)).tolist()
    norm = NORMS.get(aggregate)
    for empty_rows in ("exclude", "include") if aggregate in COUNTING else ("exclude",):
        ours = aggregation_weights(batch, aggregate, norm=norm, empty_rows=empty_rows, keep=keep)
        theirs = aggregation_weights(batch_of(both), aggregate, norm=norm, empty_rows=empty_rows)
        np.testing.assert_array_equal(ours.values, theirs.values)


@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=3, max_size=3), st.integers(0, 2), st.integers(0, 2)), max_size=6
    )
)
@pytest.mark.parametrize("aggregate", ALL)
def test_ranks_that_add_their_counts_give_the_weights_of_the_whole(batch_of, aggregate, rows):
    """A row is (mask, draw, rank); a draw may lie on several ranks."""
    settings = {"norm": NORMS.get(aggregate)}
    whole = batch_of([mask for mask, _, _ in rows], draws=[draw for _, draw, _ in rows])
    expected = dict(zip(whole.keys, _rows(aggregation_weights(whole, aggregate, **settings)), strict=True))
    parts = []
    for rank in range(3):
        masks = [mask if at == rank else None for mask, _, at in rows]
        parts.append(_without(whole, {k for k, m in zip(_keys(rows), masks, strict=True) if m is None}))
    counts = sum((denominators(part) for part in parts), denominators(Batch(groups=())))
    assert counts == denominators(whole)
    for part in parts:
        weights = aggregation_weights(part, aggregate, counts=counts, **settings)
        for key, row in zip(part.keys, _rows(weights), strict=True):
            np.testing.assert_allclose(row, expected[key], rtol=1e-15)
        twice = aggregation_weights(part, aggregate, counts=counts, num_ranks=2, **settings)
        np.testing.assert_allclose(twice.values, 2 * weights.values, rtol=1e-15)


@pytest.mark.parametrize(
    ("aggregate", "settings", "message"),
    [
        ("token_sum_norm", {}, "norm is not set"),
        ("token_mean", {"norm": 8.0}, "norm=8.0 is not read by aggregate=token_mean"),
        ("token_mean", {"empty_rows": "include"}, "empty_rows=include is not read by aggregate=token_mean"),
    ],
)
def test_what_an_aggregation_needs_or_does_not_read_is_said(batch_of, aggregate, settings, message):  # pitfall 25
    with pytest.raises(ConfigError, match=message):
        aggregation_weights(batch_of([[1]]), aggregate, **settings)


def test_a_keep_column_of_another_batch_is_refused(batch_of):
    other = batch_of([[1, 1], [1, 1]])
    keep = Column.per_token("keep", other, np.ones(4))
    with pytest.raises(ConfigError, match="'keep' is not a per-token column of the batch"):
        aggregation_weights(batch_of([[1, 1, 1, 1]]), keep=keep)


def _rows(column):
    return [column.row(i) for i in range(len(column.keys))]


def _keys(rows):
    return [(draw, sample) for sample, (_, draw, _) in enumerate(rows)]


def _without(batch, left_out):
    groups = []
    for group in batch.groups:
        kept = tuple(t for t in group.trajectories if (t.key.draw, t.key.sample) not in left_out)
        groups.append(type(group)(draw=group.draw, prompt=group.prompt, trajectories=kept))
    return Batch(groups=tuple(groups))
