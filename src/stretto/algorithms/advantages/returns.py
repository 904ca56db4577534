"""Token-level estimators over ragged rows: discounted rewards to go, and those made of them; the GAE family.

``rewards`` and ``values`` are [N], ``mask`` [N] is 1 where the policy wrote the token, ``offsets`` [B + 1] cuts the
rows. Tokens that are not written are skipped: a step is one written token to the next, whatever was read in between.
What stands there may be NaN, and what comes out there is 0.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stretto.algorithms.advantages.ragged import Backward, Offsets
from stretto.algorithms.advantages.siblings import Doubles
from stretto.algorithms.names import known_names_only
from stretto.types import Array, Masks

__all__ = [
    "broadcast_rows",
    "discounted_returns",
    "gae",
    "length_adaptive_lambdas",
    "place_rewards",
    "remax_advantages",
]


def place_rewards(rewards_B: Array, mask: Masks, offsets: Offsets) -> Doubles:
    """Token rewards [N]: the reward of a row on its last written token, 0 elsewhere. A row with none is left out."""
    placed = np.zeros(len(mask))
    written = np.flatnonzero(mask)
    ends = np.searchsorted(written, offsets[1:]) - 1
    has_any = ends >= np.searchsorted(written, offsets[:-1])
    placed[written[ends[has_any]]] = np.asarray(rewards_B, np.float64)[has_any]
    return placed


def broadcast_rows(values_B: ArrayLike, mask: Masks, offsets: Offsets) -> Doubles:
    """The value of a row on each of its written tokens, 0 elsewhere [N]."""
    return np.where(mask != 0, np.repeat(np.asarray(values_B, np.float64), np.diff(offsets)), 0.0)


@known_names_only
def discounted_returns(
    rewards: Array,
    mask: Masks,
    offsets: Offsets,
    *,
    gamma: float = 1.0,
    gaps: Literal["skip", "count", "wrongly_reset"] = "skip",
) -> Doubles:
    """``R_t = r_t + gamma R_{t+1}`` over the written tokens [N]: the discounted reward to go (Williams 1992).

    ``gaps``: a gap between written tokens is no step (``skip``); or each of its tokens is one more discount
    (``count``), as in OpenRLHF and slime. ``wrongly_reset`` is not to be used: it lets nothing through a gap, so what
    was written before a tool's answer never sees the reward; it is there to compare with REINFORCE++ of verl and SkyRL.
    """
    if gaps == "count":
        every = Backward.of(np.ones(len(mask)), offsets)
        earned = np.where(mask != 0, rewards, 0.0)
        return np.where(mask != 0, every.back(every.accumulate(every.lay(earned), gamma)), 0.0)
    if gaps == "wrongly_reset":
        resumes = np.flatnonzero(np.diff(np.asarray(mask, np.int8), prepend=0) > 0)
        offsets = np.union1d(offsets, resumes)
    steps = Backward.of(mask, offsets)
    return steps.back(steps.accumulate(steps.lay(np.asarray(rewards, np.float64)), gamma))


def remax_advantages(rewards: Array, baseline_B: ArrayLike, mask: Masks, offsets: Offsets) -> tuple[Doubles, Doubles]:
    """Advantages and returns [N]: the reward to go, less ``baseline_B``, the reward of the greedy attempt.

    Li et al. 2023, arXiv:2310.10505.
    """
    returns = discounted_returns(rewards, mask, offsets)
    return np.where(mask != 0, returns - broadcast_rows(baseline_B, mask, offsets), 0.0), returns


@known_names_only
def gae(
    rewards: Array,
    values: Array,
    mask: Masks,
    offsets: Offsets,
    *,
    gamma: float,
    lam: float | Doubles,
    lam_value: float | None = None,
    gaps: Literal["skip", "wrongly_value_zero"] = "skip",
) -> tuple[Doubles, Doubles]:
    """Advantages and returns [N]; ``lam`` is one, or one by row [B].

    Over the written tokens of a row, with value 0 after the last: ``delta_t = r_t + gamma V_{t+1} - V_t``,
    ``A_t = delta_t + gamma lam A_{t+1}``, ``R_t = A_t + V_t``. Schulman et al. 2015, arXiv:1506.02438, eq. 11-16.
    With ``lam_value`` the A of the returns has that lambda (Yuan et al. 2025, arXiv:2503.01491: decoupled GAE).

    ``gaps="wrongly_value_zero"`` is not to be used: it takes tokens that are not written as steps of value 0, each with
    a temporal difference of its own; it is there to compare with OpenRLHF.
    """
    if gaps == "wrongly_value_zero":
        kept = mask != 0
        whole = np.ones(len(mask), np.uint8)
        both = gae(
            np.where(kept, rewards, 0.0),
            np.where(kept, values, 0.0),
            whole,
            offsets,
            gamma=gamma,
            lam=lam,
            lam_value=lam_value,
        )
        return np.where(kept, both[0], 0.0), np.where(kept, both[1], 0.0)
    steps = Backward.of(mask, offsets)
    values_W = steps.lay(np.asarray(values, np.float64))
    deltas_W = steps.lay(np.asarray(rewards, np.float64)) + gamma * steps.next(values_W) - values_W
    advantages_W = steps.accumulate(deltas_W, gamma * lam)
    fitted_W = advantages_W if lam_value is None else steps.accumulate(deltas_W, gamma * lam_value)
    return steps.back(advantages_W), steps.back(fitted_W + values_W)


def length_adaptive_lambdas(mask: Masks, offsets: Offsets, alpha: float, least: float = 0.0) -> Doubles:
    """``1 - 1 / (alpha length)`` by row [B], at least ``least``; the length counts written tokens.

    Yue et al. 2025 (VAPO), arXiv:2504.05118: the sum of the weights of a row's temporal differences grows with its
    length instead of ending at 1 / (1 - lam). Rows shorter than 1 / alpha would have lambda 0.
    """
    written = np.concatenate([[0], np.cumsum(np.asarray(mask) != 0)])
    lengths_B = np.diff(written[offsets])
    return np.maximum(1.0 - 1.0 / np.maximum(alpha * lengths_B, 1.0), least)
