"""How far apart sampler and trainer are, and what a correction did. All are sums with counts, so parts add up."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from stretto.algorithms.off_policy.ratios import Doubles, Flags, LogRatios, clamp
from stretto.types import Array, Masks, Metric, Metrics

__all__ = [
    "bound_metrics",
    "effective_sample_size",
    "off_policy_metrics",
    "rejection_metrics",
    "weight_metrics",
    "with_weight_ess",
]


def off_policy_metrics(
    trainer_N: ArrayLike, sampler_N: ArrayLike, ratios: LogRatios, *, log_ratio_clamp: float | None = 20.0
) -> dict[str, Metric]:
    """KL estimates, perplexities and chi-square of trainer against sampler; empty if nothing was written.

    Over tokens, with d the log-ratio: ``kl`` mean of -d and ``kl_k3`` mean of exp(d) - d - 1, both of
    KL(sampler || trainer); ``chi2_token`` mean of exp(2 d) - 1, which estimates the chi-square divergence of trainer
    from sampler. Over rows with a written token: ``chi2_seq`` the same of the row's ratio; ``trainer_log_ppl`` and
    ``sampler_log_ppl`` minus the mean log-prob, ``trainer_ppl`` and ``sampler_ppl`` their exp; ``log_ppl_diff``
    trainer's less sampler's, with its ``abs``, ``max`` and ``min``; ``ppl_ratio`` its exp.
    """
    rows = ratios.counts_B > 0
    num_rows, num_tokens = float(rows.sum()), float(ratios.written_N.sum())
    if not num_rows:
        return {}
    d_N = clamp(ratios.d_N, log_ratio_clamp)[ratios.written_N]
    sums_B = clamp(ratios.sums_B, log_ratio_clamp)[rows]
    trainer_B = -ratios.mean_rows(np.asarray(trainer_N, np.float64))[rows]
    sampler_B = -ratios.mean_rows(np.asarray(sampler_N, np.float64))[rows]
    diff_B = -ratios.means_B[rows]
    tokens = {
        "kl": -ratios.d_N[ratios.written_N],
        "kl_k3": np.expm1(d_N) - d_N,
        "chi2_token": np.expm1(2 * d_N),
    }
    per_row = {
        "chi2_seq": np.expm1(2 * sums_B),
        "trainer_log_ppl": trainer_B,
        "sampler_log_ppl": sampler_B,
        "trainer_ppl": np.exp(trainer_B),
        "sampler_ppl": np.exp(sampler_B),
        "log_ppl_diff": diff_B,
        "log_ppl_diff_abs": np.abs(diff_B),
        "ppl_ratio": np.exp(diff_B),
    }
    return {
        **_means(tokens, num_tokens),
        **_means(per_row, num_rows),
        "log_ppl_diff_max": Metric("max", float(diff_B.max())),
        "log_ppl_diff_min": Metric("min", float(diff_B.min())),
    }


def weight_metrics(weights_N: Doubles, mask_N: Masks | Flags) -> dict[str, Metric]:
    """``weight`` and ``weight_square``, means over ``mask_N``; ``with_weight_ess`` makes the ESS of them."""
    w = weights_N[np.asarray(mask_N) != 0]
    return _means({"weight": w, "weight_square": w * w}, float(len(w)))


def bound_metrics(raw_N: Doubles, mask_N: Masks | Flags, lower: float, upper: float) -> dict[str, Metric]:
    """``raw_weight``, the mean of weights before their bounds, and the shares of them ``below`` and ``above``."""
    w = raw_N[np.asarray(mask_N) != 0]
    return _means({"raw_weight": w, "below": w < lower, "above": w > upper}, float(len(w)))


def effective_sample_size(weights_N: Doubles, mask_N: Masks | Flags) -> float:
    """``(sum w)^2 / (n sum w^2)`` over ``mask_N``, a share of its n tokens (Kong 1992); 0 if all weights are 0.

    It is also 1 / mean(w_n^2) with w_n = w / mean(w).
    """
    w = weights_N[np.asarray(mask_N) != 0]
    square = float((w * w).sum())
    return float(w.sum()) ** 2 / (len(w) * square) if square else 0.0


def rejection_metrics(keep_N: Flags, ratios: LogRatios) -> dict[str, Metric]:
    """Shares of ``rejected_tokens`` among written ones, and of ``rejected_rows`` and ``touched_rows`` (with any
    rejected token) among all rows, fully masked ones included."""
    dropped_B = ratios.sum_rows((~keep_N).astype(np.float64))
    touched_B = dropped_B > 0
    gone_B = touched_B & (dropped_B == ratios.counts_B)
    return {
        **_means({"rejected_tokens": dropped_B}, float(ratios.written_N.sum())),
        **_means({"rejected_rows": gone_B, "touched_rows": touched_B}, float(ratios.num_rows)),
    }


def with_weight_ess(metrics: Metrics, prefix: str = "correction/") -> dict[str, Metric]:
    """``metrics`` with ``ess`` from ``weight`` and ``weight_square``: of parts that were merged, the ESS of the whole.

    It is no sum over tokens, so it is taken anew from the two sums after every merge.
    """
    out = dict(metrics)
    weight, square = out.get(f"{prefix}weight"), out.get(f"{prefix}weight_square")
    if weight is not None and square is not None and square.count:
        ess = weight.value**2 / square.value if square.value else 0.0
        out[f"{prefix}ess"] = Metric("mean", ess * square.count, square.count)
    return out


def _means(values: Mapping[str, Array], count: float) -> dict[str, Metric]:
    return {name: Metric("mean", float(value.sum()), count) for name, value in values.items()}
