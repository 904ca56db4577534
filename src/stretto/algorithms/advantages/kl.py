"""KL divergence from log-probs of sampled tokens, and as a penalty in the reward. In numpy, without gradient; the terms
of a loss are in ``algorithms.losses``."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stretto.algorithms.advantages.ragged import Offsets
from stretto.algorithms.advantages.returns import place_rewards
from stretto.algorithms.advantages.siblings import Doubles
from stretto.algorithms.names import known_names_only
from stretto.config.algorithms.estimators import RewardKlKind
from stretto.types import Array, Masks

__all__ = ["KlInReward", "kl_estimate", "rewards_with_kl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KlInReward:
    """A KL penalty in the reward: ``coef`` times the estimate ``kind``; 0 is none. ``clip`` bounds the reward."""

    coef: float = 0.0
    kind: RewardKlKind = "k1"
    clip: tuple[float, float] | None = None


@known_names_only
def kl_estimate(logprobs: ArrayLike, ref_logprobs: ArrayLike, kind: RewardKlKind) -> Doubles:
    """A per-token estimate of KL(policy || reference) from log-probs of sampled tokens, elementwise.

    With ``d = logprobs - ref_logprobs``: k1 is d, k2 is d^2/2, k3 is exp(-d) - 1 + d, abs is \\|d\\|.
    Schulman 2020, "Approximating KL divergence". k1 and k3 are unbiased; as a penalty in the reward, only k1 has the
    gradient of KL(policy || reference) in expectation.
    """
    d = np.asarray(logprobs, np.float64) - np.asarray(ref_logprobs, np.float64)
    if kind == "k1":
        return d
    if kind == "k2":
        return d * d / 2
    if kind == "abs":
        return np.abs(d)
    return np.expm1(-d) + d


def rewards_with_kl(
    rewards_B: ArrayLike,
    kl: Array,
    mask: Masks,
    offsets: Offsets,
    *,
    kl_coef: float,
    clip: tuple[float, float] | None = None,
) -> Doubles:
    """Token rewards [N]: ``-kl_coef kl_t``, and on a row's last written token the row's reward as well.

    ``clip`` holds the row's reward within bounds first, not the penalty. Ouyang et al. 2022, arXiv:2203.02155, eq. 2.
    """
    rewards = np.asarray(rewards_B, np.float64)
    placed = place_rewards(rewards if clip is None else np.clip(rewards, *clip), mask, offsets)
    return placed - kl_coef * np.where(mask != 0, kl, 0.0)
