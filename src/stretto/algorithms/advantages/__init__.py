"""Advantages: rewards in, one number per written token out. Owns group-relative and token-level estimators, whitening
and KL penalties in the reward. Losses and how they are averaged are elsewhere. Numpy only, float64 inside.

Shapes: B rows (trajectories, or attempts of several parts), G siblings of one group, N tokens of all rows
(``offsets`` [B + 1] cuts them), as in ``types.py``. Everything per token is 0 where ``mask`` is 0; whatever stood there
does not matter.
"""

from stretto.algorithms.advantages.credit import gae_credit, group_credit, judged_rewards
from stretto.algorithms.advantages.distillation import teacher_credit
from stretto.algorithms.advantages.groups import (
    cpgd_advantages,
    gdpo_advantages,
    gpg_advantages,
    group_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    rloo_advantages,
)
from stretto.algorithms.advantages.kl import KlInReward, kl_estimate, rewards_with_kl
from stretto.algorithms.advantages.moments import explained_variance, masked_moments, whiten
from stretto.algorithms.advantages.returns import (
    broadcast_rows,
    discounted_returns,
    gae,
    length_adaptive_lambdas,
    place_rewards,
    remax_advantages,
)

__all__ = [
    "KlInReward",
    "broadcast_rows",
    "cpgd_advantages",
    "discounted_returns",
    "explained_variance",
    "gae",
    "gae_credit",
    "gdpo_advantages",
    "gpg_advantages",
    "group_advantages",
    "group_credit",
    "judged_rewards",
    "kl_estimate",
    "length_adaptive_lambdas",
    "masked_moments",
    "maxrl_advantages",
    "opo_advantages",
    "pass_at_k_advantages",
    "place_rewards",
    "remax_advantages",
    "rewards_with_kl",
    "rloo_advantages",
    "teacher_credit",
    "whiten",
]
