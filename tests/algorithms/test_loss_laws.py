"""Laws that hold for every loss: nothing but rounding depends on how an update is cut, ordered or shared out, and
tokens that are not trained on may hold NaN."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.algorithms.aggregation import Denominators, aggregation_weights, denominators
from stretto.algorithms.losses import LOSSES, Tokens
from stretto.types import Batch, Column, Metric, merge_metrics

FIELDS = ("old_logprobs", "advantages", "ref_logprobs", "correction", "selected", "returns", "old_values", "sampler")
ACTIVE = {
    "gspo": {"clip_low": 0.1, "clip_high": 0.1},
    "gspo_token": {"clip_low": 0.1, "clip_high": 0.1},
    "clip": {"dual_clip": 1.5},
    "cpgd": {"drift_coef": 0.3},
    "cispo": {"ratio_max": 1.5},
    "reinforce": {"ratio_max": 1.5},
}
"""Settings at which bounds act on log-ratios of about 0.5."""
TERMS = {"kl_coef": 0.3, "kl_kind": "k3_weighted", "kl_gradient": "value_and_score", "entropy_coef": 0.1}
PLAIN = {"sft", "value_clip"}
OF_TOKENS = sorted(LOSSES.keys() - {"dpo", "bradley_terry", "distill"})
"""Losses of pairs and of distributions need what only a backend gives: see tests/backends/test_torch_learned.py."""

Place = tuple[int, int]


@dataclass(frozen=True)
class Update:
    """Rows with their masks, which tokens a correction keeps, and numbers for every token by name and by row."""

    masks: list[list[int]]
    kept: list[list[int]]
    draws: list[int]
    numbers: dict[str, list[np.ndarray]]


@st.composite
def updates(draw) -> Update:
    masks = draw(st.lists(st.lists(st.integers(0, 1), max_size=5), min_size=1, max_size=5))
    kept = [[int(draw(st.integers(0, 4)) > 0) for _ in mask] for mask in masks]
    draws = draw(st.lists(st.integers(0, 2), min_size=len(masks), max_size=len(masks)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    numbers: dict[str, list[np.ndarray]] = {name: [] for name in (*FIELDS, "leaf", "entropy")}
    for mask in masks:
        n = len(mask)
        numbers["leaf"].append(-rng.exponential(size=n))
        for name in ("old_logprobs", "ref_logprobs", "sampler"):
            numbers[name].append(numbers["leaf"][-1] + 0.5 * rng.normal(size=n))
        for name in ("advantages", "returns", "old_values"):
            numbers[name].append(rng.normal(size=n))
        numbers["correction"].append(rng.choice([0.0, 0.7, 1.3], size=n))
        numbers["selected"].append(rng.integers(0, 2, size=n).astype(float))
        numbers["entropy"].append(rng.random(n))
    return Update(masks, kept, draws, numbers)


def batch_and_keep(batch_of, update: Update, rows: Sequence[int]) -> tuple[Batch, Column]:
    """Some rows of an update as a batch. A row keeps its number in its key, so key order is not the order of rows."""
    if not rows:
        return Batch(groups=()), Column(name="keep", keys=(), values=np.zeros(0), offsets=np.zeros(1, np.int64))
    masks = [update.masks[r] if r in rows else [] for r in range(len(update.masks))]
    batch = batch_of(masks, draws=update.draws)
    kept = [update.kept[key.sample] if key.sample in rows else [] for key in batch.keys]
    return batch, Column.per_token("keep", batch, np.asarray(list(chain(*kept)), np.float64))


def run(loss: Callable, name: str, update: Update, weights: dict[Place, float], rows: Sequence[int]):
    """Total, metrics, and the derivative by every token of ``rows``, as one micro-batch in the order given."""
    places = [(row, t) for row in rows for t in np.flatnonzero(update.masks[row]).tolist()]

    def tensor(field: str) -> torch.Tensor:
        # What is not kept is NaN in every column.
        values = [update.numbers[field][r][t] if update.kept[r][t] else np.nan for r, t in places]
        return torch.tensor(values, dtype=torch.float64)

    leaf = torch.tensor([update.numbers["leaf"][r][t] for r, t in places], dtype=torch.float64, requires_grad=True)
    policy = name != "value_clip"
    tokens = Tokens(
        weights_N=torch.tensor([weights[p] for p in places], dtype=torch.float64),
        sampler_logprobs_N=torch.tensor([update.numbers["sampler"][r][t] for r, t in places], dtype=torch.float64),
        sampled_N=torch.ones(len(places), dtype=torch.bool),
        rows_N=torch.tensor([list(rows).index(r) for r, _ in places], dtype=torch.int64),
        num_rows=len(rows),
        columns={field: tensor(field) for field in FIELDS if field != "sampler"},
        logprobs_N=leaf if policy else None,
        entropy_N=tensor("entropy") if policy else None,
        values_N=None if policy else leaf,
    )
    out = loss(tokens)
    out.total.backward()
    assert leaf.grad is not None
    metrics = {n: m for n, m in out.metrics.items() if n != "entropy"}  # also over tokens that are not kept
    return out.total.item(), metrics, dict(zip(places, leaf.grad.tolist(), strict=True))


def bound(name: str) -> Callable:
    given_settings = {**ACTIVE.get(name, {}), **({} if name in PLAIN else TERMS)}
    return lambda tokens: LOSSES[name](tokens, **given_settings)


def weights_by_place(batch_of, update, rows, aggregate, counts: Denominators | None = None) -> dict[Place, float]:
    batch, keep = batch_and_keep(batch_of, update, rows)
    norm = 7.0 if aggregate.endswith("norm") else None
    column = aggregation_weights(batch, aggregate, norm=norm, keep=keep, counts=counts)
    by_row = {key.sample: column.row(i) for i, key in enumerate(batch.keys)}
    return {(row, t): float(w) for row in rows for t, w in enumerate(by_row[row])}


def close(ours: dict, whole: dict) -> None:
    assert ours.keys() == whole.keys()
    for place, expected in whole.items():
        assert ours[place] == pytest.approx(expected, rel=1e-10, abs=1e-13), place


AGGREGATES = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "prompt_mean"]


@settings(max_examples=40, deadline=None)
@given(update=updates(), aggregate=st.sampled_from(AGGREGATES), data=st.data())
@pytest.mark.parametrize("name", OF_TOKENS)
def test_the_gradient_depends_on_no_cut_no_order_and_no_rank(batch_of, name, update, aggregate, data):  # pitfall 29
    loss, all_rows = bound(name), list(range(len(update.masks)))
    weights = weights_by_place(batch_of, update, all_rows, aggregate)
    total, metrics, gradient = run(loss, name, update, weights, all_rows)
    assert np.isfinite(total)
    assert np.isfinite(list(gradient.values())).all()
    for (row, t), slope in gradient.items():
        assert update.kept[row][t] or slope == 0

    order = data.draw(st.permutations(all_rows), label="order")
    rank_of = data.draw(st.lists(st.integers(0, 2), min_size=len(order), max_size=len(order)), label="rank")
    of_rank = [[row for row, rank in zip(order, rank_of, strict=True) if rank == wanted] for wanted in range(3)]
    counts = sum((denominators(*batch_and_keep(batch_of, update, rows)) for rows in of_rank), Denominators())
    totals, parts, slopes = 0.0, [], {}
    for rows in of_rank:
        own = weights_by_place(batch_of, update, rows, aggregate, counts)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)), max_size=2), label="cuts") | {0, len(rows)})
        for start, end in pairwise(cuts):
            part, part_metrics, part_slopes = run(loss, name, update, own, rows[start:end])
            totals += part
            parts.append(part_metrics)
            slopes |= part_slopes
    assert totals == pytest.approx(total, rel=1e-10, abs=1e-13)
    close(slopes, gradient)
    merged: dict[str, Metric] = merge_metrics(parts)
    for metric in merged:
        assert merged[metric].value == pytest.approx(metrics[metric].value, rel=1e-10, abs=1e-12), metric


@settings(max_examples=40, deadline=None)
@given(update=updates(), aggregate=st.sampled_from(AGGREGATES))
@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_token_that_is_not_kept_is_as_if_it_was_not_written(batch_of, name, update, aggregate):
    loss, rows = bound(name), list(range(len(update.masks)))
    both = [[m * k for m, k in zip(*pair, strict=True)] for pair in zip(update.masks, update.kept, strict=True)]
    without = Update(both, both, update.draws, update.numbers)
    total, _, gradient = run(loss, name, update, weights_by_place(batch_of, update, rows, aggregate), rows)
    expected, _, slopes = run(loss, name, without, weights_by_place(batch_of, without, rows, aggregate), rows)
    assert total == pytest.approx(expected, rel=1e-12, abs=1e-15)
    close({place: gradient[place] for place in slopes}, slopes)
    assert all(gradient[place] == 0 for place in gradient.keys() - slopes.keys())
