"""The named rewards of trajectories as a matrix, for estimators that take several rewards apart."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.algorithms.advantages.siblings import Doubles
from stretto.errors import ConfigError, RewardError, nearest
from stretto.types import Trajectory

__all__ = ["named_rewards"]


def named_rewards(
    trajectories: Sequence[Trajectory], groups_A: NDArray[np.int64], weights: Mapping[str, float]
) -> tuple[Doubles, Doubles]:
    """Rewards [K, A] of ``trajectories`` and their weights [K], sorted by name; with no ``weights``, all with 1.

    A reward that does not apply to a group (None for all siblings) is 0 there. ConfigError for a name that none has,
    RewardError for a reward that only some siblings have, or that is not finite.
    """
    known = sorted({name for t in trajectories for name in t.rewards})
    for name in weights:
        if trajectories and name not in known:
            raise ConfigError(
                f"the weights name the reward {name!r}, and the trajectories have {', '.join(known) or 'none'}."
                f"{nearest(name, known)}"
            )
    names = sorted(weights) if weights else known
    if trajectories and not names:
        raise RewardError(
            f"trajectory {trajectories[0].key} has no named rewards, and gdpo needs one or more. Judge groups by a "
            "reward, or by several under reward.parts."
        )
    # None becomes NaN here.
    rewards_KA = np.asarray([[t.rewards.get(name) for t in trajectories] for name in names], np.float64)
    rewards_KA = rewards_KA.reshape(len(names), len(trajectories))
    absent_KA = np.asarray([[t.rewards.get(name) is None for t in trajectories] for name in names], np.bool_)
    for name, rewards_A, absent_A in zip(names, rewards_KA, absent_KA, strict=True):
        size_P = np.bincount(groups_A)
        num_absent_A = np.bincount(groups_A, weights=absent_A, minlength=len(size_P))[groups_A]
        wrong_A = np.where(absent_A, num_absent_A != size_P[groups_A], ~np.isfinite(rewards_A))
        if wrong_A.any():
            wrong = trajectories[int(np.flatnonzero(wrong_A)[0])]
            raise RewardError(
                f"trajectory {wrong.key} has {wrong.rewards.get(name)} for the reward {name!r}, and its siblings are "
                "compared by it. A reward gives a finite number to all attempts at a prompt, or None to all."
            )
    return np.where(absent_KA, 0.0, rewards_KA), np.asarray([weights.get(name, 1.0) for name in names], np.float64)
