"""Which tokens leave the loss and its denominators: each function flags them [N]. Bounds themselves are inside.

Ratios are compared as logs, so that nothing overflows.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from stretto.algorithms.off_policy.ratios import Doubles, Flags, LogRatios, clamp
from stretto.algorithms.off_policy.weights import log_bound
from stretto.errors import ConfigError
from stretto.types import Batch

__all__ = [
    "reject_geometric",
    "reject_kl",
    "reject_negative",
    "reject_older",
    "reject_outliers",
    "reject_sequences",
    "reject_tokens",
]


def reject_tokens(ratios: LogRatios, lower: float, upper: float) -> Flags:
    """Tokens with a ratio outside [lower, upper]."""
    return _outside(ratios.d_N, lower, upper) & ratios.written_N


def reject_sequences(ratios: LogRatios, lower: float, upper: float) -> Flags:
    """Rows with a product of ratios outside [lower, upper]."""
    return ratios.spread(_outside(ratios.sums_B, lower, upper))


def reject_geometric(ratios: LogRatios, lower: float, upper: float) -> Flags:
    """Rows with a geometric mean of ratios outside [lower, upper], whatever their length.

    Liu, Li et al. 2025, "When speed kills stability".
    """
    return ratios.spread(_outside(ratios.means_B, lower, upper))


def reject_outliers(ratios: LogRatios, lower: float, upper: float) -> Flags:
    """Rows with any token whose ratio is outside [lower, upper]."""
    outside_N = reject_tokens(ratios, lower, upper)
    return ratios.spread(ratios.sum_rows(outside_N.astype(np.float64)) > 0)


def reject_kl(
    ratios: LogRatios, criterion: str, bounds: Sequence[float], *, log_ratio_clamp: float | None = 20.0
) -> Flags:
    """Tokens, or rows, with too large an estimate of KL(sampler || trainer).

    ``criterion`` is ``token_K`` or ``seq_sum_K``, ``seq_mean_K``, ``seq_max_K`` with K one of k1 = -d, k2 = d^2/2, k3 =
    exp(d) - 1 - d (Schulman 2020, "Approximating KL divergence", for samples of the sampler). For k2 and k3 ``bounds``
    is the largest value; for k1 it is (lowest, highest) ratio, or the highest with its inverse as the lowest, and
    log(lowest) <= k1 <= log(highest) stays: since k1 is -d, these bound sampler / trainer. Another criterion is a
    ConfigError.
    """
    where, _, kind = criterion.rpartition("_")
    if where not in ("token", "seq_sum", "seq_mean", "seq_max") or kind not in ("k1", "k2", "k3"):
        raise ConfigError(
            f"reject_kl does not know the criterion {criterion!r}. It is token, seq_sum, seq_mean or seq_max, then "
            "_k1, _k2 or _k3, such as token_k3."
        )
    d_N = clamp(ratios.d_N, log_ratio_clamp)
    value_N = {"k1": lambda: -d_N, "k2": lambda: d_N * d_N / 2, "k3": lambda: np.expm1(d_N) - d_N}[kind]()
    lowest, highest = -math.inf, bounds[-1]
    if kind == "k1":
        lowest, highest = log_bound(bounds[0] if len(bounds) > 1 else 1 / bounds[0]), math.log(bounds[-1])
    if where == "token":
        return ((value_N < lowest) | (value_N > highest)) & ratios.written_N
    reduce = {"seq_sum": ratios.sum_rows, "seq_mean": ratios.mean_rows, "seq_max": ratios.max_rows}[where]
    value_B = reduce(value_N)
    return ratios.spread((value_B < lowest) | (value_B > highest))


def reject_negative(moved: LogRatios, advantages_N: ArrayLike, delta: float) -> Flags:
    """Tokens with a negative advantage in rows where the mean of old - current log-prob is above ``delta``.

    ``moved`` has the current log-probs as trainer and the old ones as sampler. DeepSeek-AI 2025, arXiv:2512.02556,
    section 3.1 (off-policy sequence masking), where the old ones are those of the engine.
    """
    return moved.spread(-moved.means_B > delta) & (np.asarray(advantages_N) < 0)


def reject_older(batch: Batch, versions: int) -> Flags:
    """Tokens written by weights more than ``versions`` versions older than those that wrote the last of their row."""
    parts: list[Flags] = [np.zeros(0, np.bool_)]
    for t in batch.trajectories:
        flags = np.zeros(len(t.token_ids_T), np.bool_)
        if t.versions:
            wrote = np.repeat([s.version for s in t.versions], [s.length for s in t.versions])
            flags[t.mask_T != 0] = wrote < t.versions[-1].version - versions
        parts.append(flags)
    return np.concatenate(parts)


def _outside(log_ratio: Doubles, lower: float, upper: float) -> Flags:
    return (log_ratio < log_bound(lower)) | (log_ratio > log_bound(upper))
