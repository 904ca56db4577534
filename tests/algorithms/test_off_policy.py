"""Off-policy correction by hand and by law; the golden cases are in tests/golden."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.off_policy import (
    LogRatios,
    correct,
    effective_sample_size,
    importance_weights,
    normalize_weights,
    off_policy_metrics,
    proximal_logprobs,
    reject_kl,
    reject_negative,
    rejection_metrics,
    staleness,
    with_weight_ess,
)
from stretto.config.algorithms.correction import (
    CorrectionConfig,
    GeometricBounds,
    NegativeRows,
    OutlierBounds,
    RejectConfig,
    SequenceBounds,
    TokenBounds,
)
from stretto.errors import ConfigError
from stretto.types import Batch, Column, Group, Key, Prompt, Span, Trajectory, merge_metrics

PROMPT = Prompt(uid="p", text="p", token_ids=np.zeros(1, np.int32))
WEIGHTS = [
    CorrectionConfig(weights=weights, mode=mode, normalize=normalize)
    for weights in ("token", "sequence", "geometric")
    for mode in ("truncate", "icepop")
    for normalize in (False, True)
]
REJECTS = [
    CorrectionConfig(reject=reject)
    for reject in (
        RejectConfig(token=TokenBounds()),
        RejectConfig(sequence=SequenceBounds()),
        RejectConfig(geometric=GeometricBounds()),
        RejectConfig(outlier=OutlierBounds(lower=0.2, upper=3)),
        RejectConfig(kl={"token_k2": 0.3, "seq_sum_k3": 0.5, "seq_mean_k2": 0.2, "seq_max_k3": 0.4}),
        RejectConfig(negative=NegativeRows(delta=0.1)),
    )
]
BOTH = CorrectionConfig(
    weights="token",
    normalize=True,
    reject=RejectConfig(geometric=GeometricBounds(lower=0.5, upper=2), kl={"token_k3": 0.5}),
)
CONFIGS = [CorrectionConfig(), *WEIGHTS, *REJECTS, BOTH]


def batch_of(rows, *, sampled=True) -> Batch:
    """A batch from rows of (mask, sampler log-probs), each a draw of its own."""
    groups = []
    for draw, (mask, sampler) in enumerate(rows):
        trajectory = Trajectory(
            key=Key(draw, 0),
            token_ids_T=np.zeros(len(mask), np.int32),
            mask_T=np.asarray(mask, np.uint8),
            logprobs_T=np.asarray(sampler, np.float32),
            versions=(Span(0, int(np.sum(mask))),) if sampled else (),
            finish="stop",
        )
        groups.append(Group(draw=draw, prompt=PROMPT, trajectories=(trajectory,)))
    return Batch(groups=tuple(groups))


def column(batch: Batch, values, name="logprobs") -> Column:
    flat = np.concatenate([np.zeros(0), *(np.asarray(v, np.float64) for v in values)])
    return Column.per_token(name, batch, flat)


def corrected(rows, config):
    """Weights, keep flags (by row, at written tokens) and metrics of rows of (mask, sampler, trainer, advantage)."""
    batch = batch_of([(mask, sampler) for mask, sampler, _, _ in rows])
    advantages = column(batch, [np.full(len(mask), advantage) for mask, _, _, advantage in rows])
    out = correct(batch, column(batch, [trainer for _, _, trainer, _ in rows]), config, advantages=advantages)
    assert not out.weights.values[batch.mask == 0].any() and not out.keep.values[batch.mask == 0].any()
    places = [np.asarray(mask) != 0 for mask, *_ in rows]
    by_row = [(out.weights.row(i)[at], out.keep.row(i)[at]) for i, at in enumerate(places)]
    return by_row, out.metrics


def log_ratios(d, mask=None):
    d = np.asarray(d, np.float64)
    mask = np.ones(d.shape) if mask is None else np.asarray(mask)
    return LogRatios.between(d.ravel(), np.zeros(d.size), mask.ravel(), np.arange(len(d) + 1) * d.shape[1])


# Eighths, so that float32 sampler log-probs and their differences are exact.
logprob = st.integers(-40, 0).map(lambda n: n / 8)
token = st.tuples(st.integers(0, 1), logprob, logprob)


@st.composite
def some_rows(draw, min_size=0):
    rows = draw(st.lists(st.tuples(st.lists(token, max_size=5), st.sampled_from([-1.0, 1.0])), min_size=min_size))
    return [
        ([m for m, _, _ in tokens], [s for _, s, _ in tokens], [t for _, _, t in tokens], advantage)
        for tokens, advantage in rows
    ]


configs = st.sampled_from(CONFIGS)


def assert_same(ours, theirs):
    for (weights, keep), (other_weights, other_keep) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(weights, other_weights, rtol=1e-12)
        np.testing.assert_array_equal(keep, other_keep)


def assert_same_metrics(ours, theirs):
    assert set(ours) == set(theirs)
    for name, metric in ours.items():
        assert metric.value == pytest.approx(theirs[name].value, rel=1e-9, abs=1e-12), name
        assert metric.count == theirs[name].count, name


@given(some_rows(), configs, st.randoms())
def test_the_order_of_rows_changes_nothing(rows, config, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    straight, metrics = corrected(rows, config)
    shuffled, shuffled_metrics = corrected([rows[i] for i in order], config)
    assert_same([straight[i] for i in order], shuffled)
    assert_same_metrics(metrics, shuffled_metrics)


@given(some_rows(), configs, st.lists(st.integers(0, 3), min_size=2, max_size=2), st.sampled_from([math.nan, math.inf]))
def test_padding_with_anything_in_it_changes_nothing(rows, config, pads, junk):
    before, after = pads
    padded = [
        (
            [0] * before + mask + [0] * after,
            [0.0] * before + sampler + [-7.0] * after,
            [junk] * before + [t if m else junk for m, t in zip(mask, trainer, strict=True)] + [junk] * after,
            advantage,
        )
        for mask, sampler, trainer, advantage in rows
    ]
    ours, metrics = corrected(rows, config)
    theirs, padded_metrics = corrected(padded, config)
    assert_same(ours, theirs)
    assert_same_metrics(metrics, padded_metrics)


@given(some_rows(), configs)
def test_on_policy_it_does_nothing_at_all(rows, config):
    same = [(mask, sampler, sampler, advantage) for mask, sampler, _, advantage in rows]
    by_row, metrics = corrected(same, config)
    assert all((weights == 1).all() and keep.all() for weights, keep in by_row)
    for name in ("kl", "kl_k3", "chi2_token", "chi2_seq", "log_ppl_diff", "rejected_tokens", "touched_rows", "above"):
        metric = metrics.get(f"correction/{name}")
        assert metric is None or metric.value == 0.0, name
    if any(any(mask) for mask, *_ in rows):
        assert metrics["correction/ess"].value == metrics["correction/ppl_ratio"].value == 1.0


@given(some_rows(), some_rows(), configs)
def test_metrics_of_parts_merge_to_those_of_the_whole(first, second, config):
    config = config.model_copy(update={"normalize": False})  # a mean over the whole batch needs it whole
    parts = [corrected(rows, config)[1] for rows in (first, second)]
    _, whole = corrected(first + second, config)
    assert_same_metrics(with_weight_ess(merge_metrics(parts)), whole)


@given(some_rows(min_size=1), configs)
def test_weights_stay_in_their_bounds_and_vanish_where_a_token_is_rejected(rows, config):
    by_row, _ = corrected(rows, config)
    lower, upper = config.bounds
    for weights, keep in by_row:
        assert not weights[keep == 0].any()
        if not config.normalize:
            kept = weights[keep == 1]
            inside = (kept >= lower) & (kept <= upper)
            assert (inside | (kept == 0)).all() if config.mode == "icepop" else inside.all()


@given(some_rows(min_size=1), st.sampled_from([c for c in CONFIGS if c.normalize]))
def test_normalized_weights_have_mean_one(rows, config):
    by_row, _ = corrected(rows, config)
    if config.weights == "token":
        kept = [w for weights, keep in by_row for w in weights[keep == 1]]
    else:
        kept = [weights[keep == 1][0] for weights, keep in by_row if keep.any()]
    assert not np.any(kept) or np.mean(kept) == pytest.approx(1)


def test_weights_by_hand():
    ratios = log_ratios([np.log([2, 0.5, 1.5])])
    np.testing.assert_allclose(importance_weights(ratios, upper=1.6), [1.6, 0.5, 1.5])
    np.testing.assert_allclose(importance_weights(ratios, "sequence", upper=1.6), [1.5] * 3)
    np.testing.assert_allclose(importance_weights(ratios, "geometric"), [1.5 ** (1 / 3)] * 3)
    np.testing.assert_allclose(importance_weights(ratios, mode="icepop", lower=0.6, upper=1.6), [0, 0, 1.5])
    np.testing.assert_allclose(importance_weights(ratios, "sequence", mode="icepop", upper=1.4), [0, 0, 0])


def test_the_clamp_holds_the_exponent_after_the_sum_of_a_row():
    ratios = log_ratios([[30.0, -29.0], [30.0, 0.0]])
    np.testing.assert_allclose(importance_weights(ratios, "sequence"), np.exp([1, 1, 20, 20]))
    np.testing.assert_allclose(importance_weights(ratios, log_ratio_clamp=None), np.exp([30, -29, 30, 0]))
    assert importance_weights(log_ratios([[1000.0]]), upper=2.0, log_ratio_clamp=None) == [2.0]


def test_rows_that_share_a_weight_count_once_in_its_mean():
    ratios = log_ratios([[math.log(3), 0.0, 0.0], [math.log(2), 9.0, 9.0]], [[1, 1, 1], [1, 0, 0]])
    weights = importance_weights(ratios, "sequence")
    np.testing.assert_allclose(weights, [3, 3, 3, 2, 0, 0])
    by_row = normalize_weights(weights, ratios.written_N, ratios, "sequence")
    np.testing.assert_allclose(by_row, [1.2, 1.2, 1.2, 0.8, 0, 0])
    by_token = normalize_weights(weights, ratios.written_N, ratios)
    np.testing.assert_allclose(by_token, np.array([3, 3, 3, 2, 0, 0]) / 2.75)


def test_kl_criteria_by_hand():
    ratios = log_ratios([[0.0, 0.5], [0.1, -0.1]])
    assert reject_kl(ratios, "token_k2", [0.1]).tolist() == [False, True, False, False]
    assert reject_kl(ratios, "seq_max_k3", [0.1]).tolist() == [True, True, False, False]
    assert reject_kl(ratios, "seq_sum_k2", [0.2]).tolist() == [False] * 4
    # k1 is -d: a bound above limits sampler / trainer, and one number alone stands for its inverse as well.
    assert reject_kl(ratios, "token_k1", [0.7, 9]).tolist() == [False, True, False, False]
    assert reject_kl(ratios, "token_k1", [1 / 0.7]).tolist() == [False, True, False, False]
    for unknown in ("k3", "token_k4", "seq_k3", ""):
        with pytest.raises(ConfigError, match=f"does not know the criterion '{unknown}'"):
            reject_kl(ratios, unknown, [0.1])


def test_rejected_tokens_leave_the_denominators_and_rows_are_counted():
    rows = [([1, 1], [-1, -1], [-1, -3], 1.0), ([1, 1], [-1, -1], [-1, -1], 1.0), ([0, 0], [0, 0], [0, 0], 1.0)]
    batch = batch_of([row[:2] for row in rows])
    out = correct(batch, column(batch, [row[2] for row in rows]), CorrectionConfig(reject={"token": {}}))
    assert out.keep.values.tolist() == [1, 0, 1, 1, 0, 0]
    np.testing.assert_allclose(aggregation_weights(batch, keep=out.keep).values, [1 / 3, 0, 1 / 3, 1 / 3, 0, 0])
    assert out.metrics["correction/rejected_tokens"].value == 0.25
    assert out.metrics["correction/touched_rows"].value == pytest.approx(1 / 3)
    assert out.metrics["correction/rejected_rows"].value == 0


@pytest.mark.parametrize(("older", "kept"), [(0, [3, 2]), (1, [4, 2]), (3, [6, 2]), (None, [6, 2])])
def test_tokens_of_older_weights_than_the_last_of_their_row_are_left_out(older, kept):
    batch = batch_of([([0, *[1] * 6], [0.0] * 7), ([1, 1], [0.0] * 2)])
    first, second = batch.trajectories
    first = replace(first, versions=(Span(2, 2), Span(4, 1), Span(5, 3)))
    batch = Batch(groups=(replace(batch.groups[0], trajectories=(first, second)),))
    config = CorrectionConfig(weights="token", reject=RejectConfig(older=older))
    keep = correct(batch, column(batch, [[0.0] * 7, [0.0] * 2]), config).keep
    assert [int(keep.row(row).sum()) for row in range(2)] == kept
    if older is not None and kept[0] < 6:
        assert keep.row(0)[first.mask_T != 0].tolist() == [0] * (6 - kept[0]) + [1] * kept[0]


def test_icepop_leaves_the_denominators_alone():
    batch = batch_of([([1, 1], [-1, -1])])
    out = correct(batch, column(batch, [[-1, -3]]), CorrectionConfig(weights="token", mode="icepop"))
    assert (out.weights.values.tolist(), out.keep.values.tolist()) == ([1, 0], [1, 1])


def test_everything_may_be_rejected():
    config = CorrectionConfig(weights="token", normalize=True, reject={"outlier": {"upper": 2.0}})
    by_row, metrics = corrected([([1, 1], [-5, -1], [-1, -1], 1.0)], config)
    assert not by_row[0][0].any() and not by_row[0][1].any()
    assert metrics["correction/ess"].value == 0
    assert metrics["correction/rejected_rows"].value == metrics["correction/rejected_tokens"].value == 1
    assert metrics["correction/below"].value == 0 and metrics["correction/above"].value == 0.5


def test_nothing_written_is_no_metric_and_no_fault():
    assert corrected([], BOTH)[0] == []
    by_row, metrics = corrected([([0, 0], [0, 0], [math.nan, 3], 1.0)], BOTH)
    assert not by_row[0][0].any()
    assert all(math.isfinite(m.value) for m in metrics.values()) and "correction/chi2_token" not in metrics


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.weights != "none" and not c.normalize])
def test_a_log_prob_that_is_nan_is_not_quietly_left_out(config):  # pitfall 23
    ((weights, keep),) = corrected([([1, 1], [-1, -1], [math.nan, -1], -1.0)], config)[0]
    assert math.isnan(weights[0]) and keep.all()


def test_an_attempt_of_several_parts_is_one_row():
    rows = [([1, 1], [-1, -1]), ([1, 0], [-1, 0]), ([1, 1], [-1, -1])]
    parts = [t.trajectories[0] for t in batch_of(rows).groups]
    keys = [Key(0, 0, 0), Key(0, 0, 1), Key(1, 0)]
    parts = [replace(part, key=key) for part, key in zip(parts, keys, strict=True)]
    batch = Batch(
        groups=(
            Group(draw=0, prompt=PROMPT, trajectories=tuple(parts[:2])),
            Group(draw=1, prompt=PROMPT, trajectories=(parts[2],)),
        )
    )
    trainer = column(batch, [[-1, -1], [-0.5, 0], [-1, -1]])
    out = correct(batch, trainer, CorrectionConfig(weights="sequence"))
    np.testing.assert_allclose(out.weights.values, np.exp([0.5, 0.5, 0.5, -np.inf, 0, 0]))


def test_demonstrations_are_left_as_they_are():
    batch = batch_of([([0, 1, 1], [0, 0, 0])], sampled=False)
    out = correct(batch, column(batch, [[0, -4, -9]]), BOTH)
    assert out.weights.values.tolist() == out.keep.values.tolist() == [0, 1, 1]
    assert "correction/kl" not in out.metrics


def test_negative_rows_by_hand():
    config = CorrectionConfig(reject={"negative": {"delta": 0.5}})
    batch = batch_of([([1, 1], [-1, -1])] * 3)
    trainer = column(batch, [[-2, -2], [-2, -2], [-1, -1]])
    advantages = column(batch, [[-1, 1], [1, 1], [-1, -1]], "advantages")
    assert correct(batch, trainer, config, advantages=advantages).keep.values.tolist() == [0, 1, 1, 1, 1, 1]
    near = column(batch, [[-1.6, -1.6]] * 3)
    assert correct(batch, trainer, config, advantages=advantages, old=near).keep.values.all()
    moved = log_ratios([[-1.0, math.nan]], [[1, 0]])
    assert reject_negative(moved, [-1.0, math.nan], 0.5).tolist() == [True, False]


def test_what_is_missing_or_foreign_is_named():
    batch, other = batch_of([([1], [-1])]), batch_of([([1], [-1]), ([1], [-1])])
    trainer = column(batch, [[-1]])
    with pytest.raises(ConfigError, match=r"reject.negative looks at advantages, and none came. Pass advantages="):
        correct(batch, trainer, CorrectionConfig(reject={"negative": {}}))
    with pytest.raises(ConfigError, match="'mine' is not a per-token column of the batch that is corrected"):
        correct(batch, column(other, [[-1], [-1]], "mine"), CorrectionConfig())
    with pytest.raises(ConfigError, match="'rows' is not a per-token column"):
        correct(batch, Column.per_trajectory("rows", batch, np.zeros(1)), CorrectionConfig())


def test_estimates_agree_with_what_they_estimate():
    # Every outcome of a token once per unit of its sampler probability, so that means are expectations.
    sampler, trainer = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    outcome = np.array([0, 0, 1, 2])
    ratios = LogRatios.between(np.log(trainer)[outcome], np.log(sampler)[outcome], np.ones(4, np.uint8), np.arange(5))
    found = off_policy_metrics(np.log(trainer)[outcome], np.log(sampler)[outcome], ratios)
    kl, chi2 = (sampler * np.log(sampler / trainer)).sum(), (trainer**2 / sampler).sum() - 1
    for name, expected in {"kl": kl, "kl_k3": kl, "chi2_token": chi2, "chi2_seq": chi2}.items():
        assert found[name].value == pytest.approx(expected), name
    weights = importance_weights(ratios)
    np.testing.assert_allclose(weights.mean(), 1)
    assert effective_sample_size(weights, ratios.written_N) == pytest.approx(1 / (1 + chi2))


def test_shares_of_what_is_rejected():
    ratios = log_ratios(np.zeros((3, 2)), [[1, 1], [1, 0], [0, 0]])
    shares = rejection_metrics(np.array([1, 0, 0, 0, 0, 0], bool), ratios)
    assert [shares[n].total for n in ("rejected_tokens", "rejected_rows", "touched_rows")] == [2, 1, 2]
    assert [shares[n].count for n in ("rejected_tokens", "rejected_rows", "touched_rows")] == [3, 3, 3]


def test_proximal_log_probs():
    sampler, recomputed = np.array([-1.0, -2.0, -0.1]), np.array([-1.5, -1.0, -0.3])
    assert proximal_logprobs("detach", sampler) is None
    np.testing.assert_array_equal(proximal_logprobs("sampler", sampler), sampler)
    np.testing.assert_array_equal(proximal_logprobs("recompute", sampler, recomputed), recomputed)
    half = proximal_logprobs("interpolate", sampler, recomputed, alpha=0.5)
    np.testing.assert_allclose(half, [-1.25, -1.5, -0.2])
    by_token = proximal_logprobs("interpolate", sampler, recomputed, staleness_N=[0, 1, 4])
    np.testing.assert_allclose(by_token, [-1.5, -2.0, -0.25])


@given(st.lists(st.tuples(logprob, logprob, st.integers(0, 5)), max_size=6))
def test_interpolation_ends_exactly_at_both_policies_and_stays_between(tokens):
    sampler, recomputed, lag = np.array(tokens, np.float64).reshape(-1, 3).T / 7
    lag = np.round(lag * 7)
    found = proximal_logprobs("interpolate", sampler, recomputed, staleness_N=lag)
    np.testing.assert_array_equal(found[lag == 0], recomputed[lag == 0])
    np.testing.assert_array_equal(found[lag == 1], sampler[lag == 1])
    np.testing.assert_array_equal(proximal_logprobs("interpolate", sampler, recomputed, alpha=1.0), recomputed)
    np.testing.assert_array_equal(proximal_logprobs("interpolate", sampler, recomputed, alpha=0.0), sampler)
    low, high = np.minimum(sampler, recomputed), np.maximum(sampler, recomputed)
    assert ((found >= low - 1e-12) & (found <= high + 1e-12)).all()


def test_staleness_is_counted_by_token():
    (first, second) = (group.trajectories[0] for group in batch_of([([0, 1, 1, 0, 1], [0] * 5), ([1], [0])]).groups)
    first = replace(first, versions=(Span(3, 2), Span(4, 1)))
    batch = Batch(
        groups=(
            Group(draw=0, prompt=PROMPT, trajectories=(first,)),
            Group(draw=1, prompt=PROMPT, trajectories=(replace(second, versions=()),)),
        )
    )
    assert staleness(batch, 5).tolist() == [0, 2, 2, 0, 1, 0]
