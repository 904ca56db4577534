"""Group-relative estimators: one reward per row in, one advantage per row out.

All take ``rewards_B`` (finite) and ``groups_B`` (any integers: rows with the same one are siblings; groups of any size,
in any order) and give float64 [B]. Where a group's mean or the like is subtracted, a group whose rewards are all equal
has advantage exactly 0, and ``singleton`` says what becomes of a group of one: 0, or its reward (``raw``), as if its
baseline were 0. Whitening over tokens, where an estimator ends with it, is ``whiten``.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stretto.algorithms.advantages.siblings import Doubles, Siblings
from stretto.algorithms.names import known_names_only
from stretto.config.algorithms.estimators import Center, Scale, Singleton

__all__ = [
    "cpgd_advantages",
    "gdpo_advantages",
    "gpg_advantages",
    "group_advantages",
    "maxrl_advantages",
    "opo_advantages",
    "pass_at_k_advantages",
    "rloo_advantages",
]


@known_names_only
def group_advantages(
    rewards_B: ArrayLike,
    groups_B: ArrayLike,
    *,
    center: Center = "mean",
    scale: Scale = "group_std",
    epsilon: float = 1e-6,
    ddof: int = 1,
    singleton: Singleton = "zero",
) -> Doubles:
    """``(r - centre) / (scale + epsilon)`` [B], or ``r - centre`` with ``scale="none"``.

    GRPO is the default: Shao et al. 2024, arXiv:2402.03300, section 4.1.2. ``scale="none"``: Liu et al. 2025 (Dr.
    GRPO), arXiv:2503.20783. With a group's mean m, n siblings, and l_i the mean of the siblings of i without i:

    - ``group_std`` sqrt(sum (r - m)^2 / (n - ddof)); ``group_std_floor`` has at least epsilon under the root;
    - ``leave_one_out_std`` the same of the siblings without i, which is no division at all where it is 0;
    - ``leave_one_out_deviation`` sqrt(sum (r_i - l_i)^2 / (n - ddof)), larger than the first by n / (n - 1);
    - ``batch_std`` sqrt(sum c^2 / (B - ddof)) over what ``center`` left of all rows, c.
    """
    siblings = Siblings.of(rewards_B, groups_B)
    centred_S = _centred(siblings, center)
    if scale == "leave_one_out_std":
        std_S = siblings.others_deviations(ddof)
        scaled_S = np.where(std_S > 0, centred_S / (std_S + epsilon), centred_S)
    elif scale == "none":
        scaled_S = centred_S
    else:
        divisor_S = _scale(siblings, centred_S, scale, epsilon, ddof) + epsilon
        scaled_S = np.divide(centred_S, divisor_S, out=np.zeros_like(centred_S), where=divisor_S > 0)
    return siblings.rows(scaled_S if center == "batch_mean" else _alone(siblings, scaled_S, singleton, epsilon))


@known_names_only
def rloo_advantages(
    rewards_B: ArrayLike, groups_B: ArrayLike, *, singleton: Literal["zero", "raw"] = "zero"
) -> Doubles:
    """``r_i`` less the mean of its siblings' rewards without it, which is ``(r_i - m) n / (n - 1)`` [B].

    Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740.
    """
    return group_advantages(rewards_B, groups_B, center="leave_one_out", scale="none", singleton=singleton)


@known_names_only
def opo_advantages(
    rewards_B: ArrayLike, groups_B: ArrayLike, lengths_B: ArrayLike, *, singleton: Literal["zero", "raw"] = "zero"
) -> Doubles:
    """``r - sum(length r) / sum(length)`` [B], sums over the group; ``lengths_B`` are written tokens.

    The baseline of least variance if the squared norm of a row's gradient is proportional to its length: Hao et al.
    2025, arXiv:2505.23585. A group without a written token has advantage 0.
    """
    siblings = Siblings.of(rewards_B, groups_B)
    lengths_S = np.asarray(lengths_B, np.float64)[siblings.order_S]
    length_P = siblings.totals(lengths_S)
    baseline_P = siblings.totals(lengths_S * siblings.rewards_S) / np.where(length_P > 0, length_P, 1.0)
    nothing_P = siblings.constant_P | (length_P == 0)
    centred_S = np.where(nothing_P[siblings.group_S], 0.0, siblings.rewards_S - baseline_P[siblings.group_S])
    return siblings.rows(_alone(siblings, centred_S, singleton))


@known_names_only
def gpg_advantages(
    rewards_B: ArrayLike,
    groups_B: ArrayLike,
    *,
    f_norm: float = 1.0,
    rows: Literal["informative", "nonzero"] = "informative",
    singleton: Literal["zero", "raw"] = "zero",
) -> Doubles:
    """``(r - m) rows / rows that count / f_norm`` [B].

    Chu et al. 2025, arXiv:2504.02546, whose factor makes up for the rows that have no gradient: B / (B - those of
    groups without a difference). verl counts the rows whose reward is not 0 instead (``rows="nonzero"``).
    """
    siblings = Siblings.of(rewards_B, groups_B)
    if rows == "nonzero":
        counted = np.count_nonzero(siblings.rewards_S)
    else:
        counted = int(siblings.sizes_P[~siblings.constant_P].sum())
    factor = len(siblings.order_S) / max(counted, 1) / f_norm
    return siblings.rows(_alone(siblings, siblings.differences(), singleton) * factor)


@known_names_only
def maxrl_advantages(
    rewards_B: ArrayLike, groups_B: ArrayLike, *, epsilon: float = 0.0, singleton: Singleton = "zero"
) -> Doubles:
    """``(r - m) / (m + epsilon)`` [B] for rewards of 0 or more; with epsilon 0, 0 where m is not above 0.

    With rewards 0 and 1, n siblings and a rate of success p, the expected gradient is ``grad p sum_{k<n-1} (1 - p)^k``:
    that of log p, truncated at order n - 1. Tajwar et al. 2026, arXiv:2602.02710, algorithm 1, which has 0 where none
    succeeds.
    """
    siblings = Siblings.of(rewards_B, groups_B)
    below_P = siblings.means() + epsilon
    usable_P = below_P != 0 if epsilon else below_P > 0
    relative_S = siblings.differences() / np.where(usable_P, below_P, 1.0)[siblings.group_S]
    return siblings.rows(_alone(siblings, np.where(usable_P[siblings.group_S], relative_S, 0.0), singleton, epsilon))


@known_names_only
def pass_at_k_advantages(
    rewards_B: ArrayLike,
    groups_B: ArrayLike,
    *,
    scale: Literal["group_std", "none"] = "group_std",
    epsilon: float = 1e-6,
    ddof: int = 1,
) -> Doubles:
    """The best of a group has its reward less the second best, over std + epsilon; all others have 0 [B].

    What the best attempt adds to the group's maximum, so pass@k for k the group's size: Tang et al. 2025,
    arXiv:2503.19595. A tie for the best gives 0 to all, and so does a group of one.
    """
    siblings = Siblings.of(rewards_B, groups_B)
    best_P = siblings.starts_P + siblings.sizes_P - 1
    second_P = np.maximum(best_P - 1, siblings.starts_P)
    gain_P = siblings.rewards_S[best_P] - siblings.rewards_S[second_P]
    advantages_S = np.zeros(len(siblings.order_S))
    advantages_S[best_P] = gain_P / (siblings.deviations(ddof) + epsilon) if scale == "group_std" else gain_P
    return siblings.rows(advantages_S)


def gdpo_advantages(
    rewards_KB: ArrayLike,
    groups_B: ArrayLike,
    weights_K: ArrayLike,
    *,
    leave_one_out: bool = False,
    epsilon: float = 1e-6,
    ddof: int = 1,
) -> Doubles:
    """K rewards [K, B], each made relative to its group, in a weighted sum, standardised over the rows [B].

    ``leave_one_out`` takes mean and standard deviation of the other siblings. The last step divides by the unbiased
    standard deviation of all rows, with nothing added. Liu et al. 2026, arXiv:2601.05242.
    """
    center, scale = ("leave_one_out", "leave_one_out_std") if leave_one_out else ("mean", "group_std")
    total_B = np.zeros(len(np.asarray(groups_B)))
    for rewards_B, weight in zip(np.asarray(rewards_KB, np.float64), np.asarray(weights_K), strict=True):
        total_B += weight * group_advantages(
            rewards_B, groups_B, center=center, scale=scale, epsilon=epsilon, ddof=ddof
        )
    if len(total_B) < 2 or total_B.max() == total_B.min():
        return np.zeros(len(total_B))
    # What was centred in each group has mean 0 already; subtracting its rounding would move constant groups off 0.
    mean = total_B.mean() if leave_one_out else 0.0
    return (total_B - mean) / total_B.std(ddof=1)


@known_names_only
def cpgd_advantages(
    rewards_B: ArrayLike,
    groups_B: ArrayLike,
    *,
    weight: Literal["clip_filter", "group_std", "none"] = "clip_filter",
    cap: float = 3.0,
    count: Literal["groups", "rows"] = "groups",
    epsilon: float = 1e-6,
) -> Doubles:
    """``(r - m) w`` [B] with ``w = min(groups / groups with a difference, cap)``, ``1 / (std + epsilon)`` or 1.

    Liu et al. 2025, arXiv:2505.12504. The first makes up for groups without a gradient, as filtering them out and
    drawing others would. siiRL counts rows over groups (``count="rows"``), which is n times as much.
    """
    if weight != "clip_filter":
        return group_advantages(rewards_B, groups_B, scale=weight, epsilon=epsilon)
    siblings = Siblings.of(rewards_B, groups_B)
    counted = len(siblings.order_S) if count == "rows" else len(siblings.sizes_P)
    varied = int((~siblings.constant_P).sum())
    return siblings.rows(siblings.differences() * min(counted / max(varied, 1), cap))


def _centred(siblings: Siblings, center: Center) -> Doubles:
    """Rewards less what ``center`` names [S]; a group of one is left with 0 by its own mean."""
    if center == "batch_mean":
        rewards_S = siblings.rewards_S
        constant = len(rewards_S) == 0 or rewards_S.max() == rewards_S.min()
        return np.zeros(len(rewards_S)) if constant else rewards_S - rewards_S.mean()
    differences_S = siblings.differences()
    if center == "mean":
        return differences_S
    return differences_S * siblings.sizes_S / np.maximum(siblings.sizes_S - 1, 1)


def _scale(siblings: Siblings, centred_S: Doubles, scale: Scale, epsilon: float, ddof: int) -> Doubles:
    """What ``scale`` names, for every row [S], before epsilon is added."""
    if scale == "batch_std":
        total = float((centred_S**2).sum())
        return np.full(len(centred_S), np.sqrt(total / max(len(centred_S) - ddof, 1)))
    if scale == "leave_one_out_deviation":
        squares_P = siblings.totals(_centred(siblings, "leave_one_out") ** 2)
        return np.sqrt(squares_P / np.maximum(siblings.sizes_P - ddof, 1))[siblings.group_S]
    std_P = siblings.deviations(ddof)
    if scale == "group_std_floor":
        std_P = np.sqrt(np.maximum(std_P**2, epsilon))
    return std_P[siblings.group_S]


def _alone(siblings: Siblings, values_S: Doubles, singleton: Singleton, epsilon: float = 0.0) -> Doubles:
    """``values_S`` with groups of one as ``singleton`` says."""
    single_S = siblings.single_P[siblings.group_S]
    if singleton == "zero":
        return np.where(single_S, 0.0, values_S)
    return np.where(single_S, siblings.rewards_S / (1 + epsilon if singleton == "raw_over_1_plus_eps" else 1), values_S)
