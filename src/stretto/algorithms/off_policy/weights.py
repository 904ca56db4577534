"""What a token's loss is multiplied by to make up for the policy that sampled it."""

import math

import numpy as np

from stretto.algorithms.names import known_names_only
from stretto.algorithms.off_policy.ratios import Doubles, Flags, LogRatios, clamp
from stretto.config.algorithms.correction import WeightLevel, WeightMode

__all__ = ["importance_weights", "log_bound", "normalize_weights"]


@known_names_only
def importance_weights(
    ratios: LogRatios,
    level: WeightLevel = "token",
    *,
    mode: WeightMode = "truncate",
    lower: float = 0.0,
    upper: float = math.inf,
    log_ratio_clamp: float | None = 20.0,
) -> Doubles:
    """Weights [N], 0 where nothing was written: exp(d) of the token, or of its row for all tokens of the row.

    token: ``w_t = exp(d_t)``. sequence: ``exp(sum d)``, the ratio of the probabilities of the whole row, unbiased.
    geometric: ``exp(mean d)``. Then truncate: ``min(max(w, lower), upper)`` (Ionides 2008, J. Comput. Graph. Stat. 17,
    295-311; for language models Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training"; the sequence form is in Liu, Li et al. 2025, "When speed kills stability"). icepop: w inside the bounds
    and 0 outside (Ling Team 2025, arXiv:2510.18855, its function M).

    ``log_ratio_clamp`` bounds the exponent, after the sum of a row and not before (as verl and SkyRL; slime, AReaL and
    NeMo-RL have none). No gradient flows through these weights.
    """
    log_N = _log_weights(ratios, level)
    with np.errstate(over="ignore"):  # without a clamp, inf is what bounds are for
        weights_N = np.exp(clamp(log_N, log_ratio_clamp))
    if mode == "truncate":
        weights_N = np.clip(weights_N, lower, upper)
    else:
        outside_N = (log_N < log_bound(lower)) | (log_N > log_bound(upper))
        weights_N = np.where(outside_N, 0.0, weights_N)
    return np.where(ratios.written_N, weights_N, 0.0)


@known_names_only
def normalize_weights(weights_N: Doubles, keep_N: Flags, ratios: LogRatios, level: WeightLevel = "token") -> Doubles:
    """``weights_N`` divided by their mean over ``keep_N``, 0 outside it.

    token: every kept token counts once. sequence and geometric: every row with a kept token counts once, whatever its
    length. Weights that are all 0 stay so. Self-normalised importance sampling; verl takes the mean before it rejects.
    """
    kept_N = np.where(keep_N, weights_N, 0.0)
    if level == "token":
        total, count = float(kept_N.sum()), int(keep_N.sum())
    else:
        counts_B = ratios.sum_rows(keep_N.astype(np.float64))
        total = float((ratios.sum_rows(kept_N) / np.maximum(counts_B, 1.0)).sum())
        count = int((counts_B > 0).sum())
    # One quotient, so that weights of 1 stay exactly 1.
    return kept_N if total == 0 else kept_N / (total / count)


def log_bound(ratio: float) -> float:
    """The log of a ratio's bound; 0 is none."""
    return math.log(ratio) if ratio > 0 else -math.inf


def _log_weights(ratios: LogRatios, level: WeightLevel) -> Doubles:
    if level == "token":
        return ratios.d_N
    return ratios.spread(ratios.sums_B if level == "sequence" else ratios.means_B)
