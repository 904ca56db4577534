"""Mean, variance, whitening and explained variance over the written tokens of a batch.

Global by definition: every token of the batch counts once, whatever its row or group.
"""

import math
from typing import assert_never

import numpy as np
from numpy.typing import ArrayLike

from stretto.algorithms.advantages.siblings import Doubles
from stretto.algorithms.names import known_names_only
from stretto.config.algorithms.estimators import Stabilizer

__all__ = ["explained_variance", "masked_moments", "whiten"]


def masked_moments(values: ArrayLike, mask: ArrayLike, *, ddof: int = 1) -> tuple[float, float]:
    """Mean and variance of the values [N] whose mask is not 0; 0 and 0 of none, variance 0 where all are equal.

    ``ddof`` is taken from the count in the variance: 1 is unbiased (and gives 0 for one value), 0 divides by all.
    """
    kept = np.asarray(values, np.float64)[np.asarray(mask) != 0]
    if not kept.size:
        return 0.0, 0.0
    if kept.max() == kept.min():
        return float(kept.flat[0]), 0.0
    return float(kept.mean()), float(kept.var(ddof=ddof))


@known_names_only
def whiten(
    values: ArrayLike,
    mask: ArrayLike,
    *,
    ddof: int = 1,
    epsilon: float = 1e-8,
    stabilizer: Stabilizer = "add_to_variance",
) -> Doubles:
    """``(x - mean) / sqrt(var + epsilon)`` over the written tokens, 0 elsewhere, in the shape of ``values``.

    ``stabilizer``: epsilon may be the least variance (``variance_floor``) or be added to the standard deviation
    (``add_to_std``) instead. Equal values, one alone too, give exactly 0.
    """
    kept = np.asarray(mask) != 0
    mean, variance = masked_moments(values, mask, ddof=ddof)
    out = np.zeros(kept.shape)
    if variance > 0:
        out[kept] = (np.asarray(values, np.float64)[kept] - mean) / _divisor(variance, epsilon, stabilizer)
    return out


def explained_variance(values: ArrayLike, returns: ArrayLike, mask: ArrayLike, *, ddof: int = 0) -> float:
    """``1 - Var(returns - values) / Var(returns)`` over the written tokens: 1 for a critic that is right up to a
    constant, 0 for one that says nothing, less for one that misleads. 0 where the returns are all equal."""
    kept = np.asarray(mask) != 0
    returns_K = np.asarray(returns, np.float64)[kept]
    errors_K = returns_K - np.asarray(values, np.float64)[kept]
    every = np.ones(len(returns_K))
    variance = masked_moments(returns_K, every, ddof=ddof)[1]
    return 1.0 - masked_moments(errors_K, every, ddof=ddof)[1] / variance if variance > 0 else 0.0


def _divisor(variance: float, epsilon: float, stabilizer: Stabilizer) -> float:
    match stabilizer:
        case "add_to_variance":
            return math.sqrt(variance + epsilon)
        case "variance_floor":
            return math.sqrt(max(variance, epsilon))
        case "add_to_std":
            return math.sqrt(variance) + epsilon
        case _:
            assert_never(stabilizer)
