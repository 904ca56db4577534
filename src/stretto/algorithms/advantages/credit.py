"""The Credit of a Batch: which rows are siblings and attempts, which estimator a config names, what is reported.

Shapes: B rows of the batch, A attempts (one row each but for those of several parts), N tokens. Siblings are the
attempts of one draw by one Model, whatever their prompts say; the parts of an attempt share its reward and advantage.
"""

from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

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
from stretto.algorithms.advantages.moments import explained_variance, whiten
from stretto.algorithms.advantages.named_rewards import named_rewards
from stretto.algorithms.advantages.ragged import Offsets
from stretto.algorithms.advantages.returns import (
    discounted_returns,
    gae,
    length_adaptive_lambdas,
    remax_advantages,
)
from stretto.algorithms.advantages.siblings import Doubles, Siblings
from stretto.config.algorithms.estimators import (
    Advantages,
    CpgdAdvantages,
    GaeConfig,
    GdpoAdvantages,
    GpgAdvantages,
    GroupAdvantages,
    MaxRlAdvantages,
    OpoAdvantages,
    PassAtKAdvantages,
    ReinforcePpAdvantages,
    ReinforcePpBaselineAdvantages,
    RemaxAdvantages,
    RlooAdvantages,
)
from stretto.errors import ConfigError, DataError, RewardError
from stretto.types import LARGEST_REWARD, Batch, Column, Credit, Metric, Trajectory

__all__ = ["gae_credit", "group_credit", "judged_rewards"]

NO_KL = KlInReward()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempts:
    """The attempts of a batch. ``last_A``: the last row of each. ``groups_A``: the number of its group of siblings."""

    batch: Batch
    last_A: NDArray[np.int64]
    rewards_A: Doubles
    groups_A: NDArray[np.int64]

    @classmethod
    def of(cls, batch: Batch) -> "Attempts":
        """RewardError for a reward that is missing or not finite."""
        last_A = np.zeros(int(batch.attempts.max(initial=-1)) + 1, np.int64)
        last_A[batch.attempts] = np.arange(len(batch.keys))
        numbers: dict[tuple[int, str], int] = {}
        keys = [batch.keys[int(row)] for row in last_A]
        groups = [numbers.setdefault((key.draw, key.model), len(numbers)) for key in keys]
        return cls(
            batch=batch,
            last_A=last_A,
            rewards_A=judged_rewards(batch)[last_A],
            groups_A=np.asarray(groups, np.int64),
        )

    @property
    def trajectories(self) -> list[Trajectory]:
        """The last part of each attempt [A]."""
        return [self.batch.trajectories[int(row)] for row in self.last_A]

    @property
    def lengths_A(self) -> Doubles:
        """Written tokens of each attempt, in all its parts."""
        written = np.concatenate([[0], np.cumsum(self.batch.mask, dtype=np.int64)])
        lengths_B = np.diff(written[self.batch.offsets])
        lengths_A = np.zeros(len(self.last_A))
        np.add.at(lengths_A, self.batch.attempts, lengths_B)
        return lengths_A

    @property
    def offsets(self) -> Offsets:
        """Boundaries of attempts [A + 1]: those of rows, without the ones between the parts of an attempt."""
        batch = self.batch
        if len(batch.keys) < 2:
            return batch.offsets
        begins = np.diff(batch.attempts) != 0
        assert int(begins.sum()) == int(batch.attempts.max()), (
            "parts of an attempt by one Model are neighbours in key order"
        )
        return batch.offsets[np.concatenate([[True], begins, [True]])]

    def spread(self, values_A: Doubles) -> Doubles:
        """The value of an attempt on each of its written tokens [N]."""
        per_token = np.repeat(values_A[self.batch.attempts], np.diff(self.batch.offsets))
        return np.where(self.batch.mask != 0, per_token, 0.0)


def judged_rewards(batch: Batch) -> Doubles:
    """The rewards of a batch [B]. One that is missing, not finite or beyond float32 raises RewardError naming the
    trajectory."""
    # None becomes NaN here.
    rewards_B = np.asarray([t.reward for t in batch.trajectories], np.float64)
    good_B = np.abs(rewards_B) <= LARGEST_REWARD
    if not good_B.all():
        wrong = batch.trajectories[int(np.flatnonzero(~good_B)[0])]
        raise RewardError(
            f"trajectory {wrong.key} has the reward {wrong.reward}, and advantages need a number that float32 holds. "
            "Judge every group before it is collected: score(group), or a reward that applies to it."
        )
    return rewards_B


def group_credit(
    batch: Batch,
    estimator: Advantages = GroupAdvantages(),
    *,
    ref: Column | None = None,
    kl: KlInReward = NO_KL,
) -> Credit:
    """Advantages of a batch by an estimator that needs no critic; without a difference in a group they are 0.

    ``ref`` (the reference's log-probs) and ``kl`` take a KL penalty from the reward: of each token with reinforce_pp
    and remax, of the attempt as a whole (the sum over its tokens) with the others. With remax, one attempt of each
    group was sampled greedily, which its ``info["greedy"]`` says: its reward is the baseline of its siblings and its
    own advantage is 0.

    Metrics: the shares of groups without a difference and of groups of one, and the standard deviation of rewards in a
    group.
    """
    attempts = Attempts.of(batch)
    if not isinstance(estimator, ReinforcePpAdvantages | RemaxAdvantages):
        penalised, measured = _less_penalty(attempts, estimator, ref, kl)
        advantages, metrics = _by_attempt(penalised, estimator)
        metrics |= measured
    else:
        rewards, metrics = _token_rewards(attempts, ref, kl)
        if isinstance(estimator, ReinforcePpAdvantages):
            returns = discounted_returns(rewards, batch.mask, attempts.offsets, gamma=estimator.gamma)
            advantages = _whitened(returns, batch, estimator)
            metrics |= _group_metrics(attempts.groups_A, attempts.rewards_A)
        else:
            advantages, more = _remax(attempts, rewards)
            metrics |= more
    return Credit(advantages=Column.per_token("advantages", batch, advantages), metrics=metrics)


def gae_credit(
    batch: Batch,
    values: Column,
    settings: GaeConfig = GaeConfig(),
    *,
    ref: Column | None = None,
    kl: KlInReward = NO_KL,
) -> Credit:
    """Advantages and returns of a batch by GAE from the critic's ``values`` [N].

    With ``ref`` (the reference's log-probs) and ``kl`` the reward of each token is lessened by a penalty. Returns are
    taken before whitening. The parts of an attempt are one sequence, with its reward at the end of the last.
    """
    attempts = Attempts.of(batch)
    offsets, mask = attempts.offsets, batch.mask
    rewards, metrics = _token_rewards(attempts, ref, kl)
    lam = settings.lam or 0.0
    if settings.length_alpha is not None:
        lam = length_adaptive_lambdas(mask, offsets, settings.length_alpha, least=lam)
    advantages, returns = gae(
        rewards, values.values, mask, offsets, gamma=settings.gamma, lam=lam, lam_value=settings.lam_value
    )
    metrics["credit/return"] = Metric("mean", float(returns.sum()), batch.num_written)
    metrics["credit/advantage"] = Metric("mean", float(advantages.sum()), batch.num_written)
    metrics["credit/explained_variance"] = Metric("mean", explained_variance(values.values, returns, mask))
    if settings.whiten:
        advantages = _whitened(advantages, batch, settings)
    return Credit(
        advantages=Column.per_token("advantages", batch, advantages),
        returns=Column.per_token("returns", batch, returns),
        metrics=metrics,
    )


def _less_penalty(
    attempts: Attempts, estimator: Advantages, ref: Column | None, kl: KlInReward
) -> tuple[Attempts, dict[str, Metric]]:
    """The attempts with the KL penalty of their tokens taken from their rewards, and what it was."""
    if not kl.coef:
        return attempts, {}
    if isinstance(estimator, GdpoAdvantages):
        raise ConfigError(
            f"kl_coef={kl.coef} asks for a KL penalty in the reward, and gdpo has several. Put the KL term in the loss."
        )
    estimate, metrics = _kl_of_tokens(attempts.batch, ref, kl)
    of_token = np.repeat(attempts.batch.attempts, np.diff(attempts.batch.offsets))
    kl_A = np.bincount(of_token, weights=estimate, minlength=len(attempts.last_A))
    return replace(attempts, rewards_A=attempts.rewards_A - kl.coef * kl_A), metrics


def _by_attempt(
    attempts: Attempts,
    estimator: GroupAdvantages
    | RlooAdvantages
    | ReinforcePpBaselineAdvantages
    | OpoAdvantages
    | GpgAdvantages
    | MaxRlAdvantages
    | PassAtKAdvantages
    | GdpoAdvantages
    | CpgdAdvantages,
) -> tuple[Doubles, dict[str, Metric]]:
    """The advantages [N] by estimators that give one number per attempt, and the metrics of their groups."""
    rewards, groups = attempts.rewards_A, attempts.groups_A
    parts_KA = rewards[None]
    settings = estimator.model_dump(exclude={"type"})
    match estimator:
        case GroupAdvantages():
            per_attempt = group_advantages(rewards, groups, **settings)
        case RlooAdvantages():
            per_attempt = rloo_advantages(rewards, groups, **settings)
        case OpoAdvantages():
            per_attempt = opo_advantages(rewards, groups, attempts.lengths_A, **settings)
        case GpgAdvantages():
            per_attempt = gpg_advantages(rewards, groups, **settings)
        case MaxRlAdvantages():
            per_attempt = maxrl_advantages(_not_negative(attempts), groups, **settings)
        case PassAtKAdvantages():
            per_attempt = pass_at_k_advantages(rewards, groups, **settings)
        case CpgdAdvantages():
            per_attempt = cpgd_advantages(rewards, groups, **settings)
        case GdpoAdvantages():
            parts_KA, weights_K = named_rewards(attempts.trajectories, groups, settings.pop("weights"))
            per_attempt = gdpo_advantages(parts_KA, groups, weights_K, **settings)
        case ReinforcePpBaselineAdvantages():
            per_attempt = group_advantages(rewards, groups, scale="none", singleton=estimator.singleton)
        case _:
            assert_never(estimator)
    advantages = attempts.spread(per_attempt)
    if isinstance(estimator, ReinforcePpBaselineAdvantages):
        advantages = _whitened(advantages, attempts.batch, estimator)
    return advantages, _group_metrics(groups, rewards, parts_KA)


def _whitened(
    values: Doubles, batch: Batch, settings: ReinforcePpAdvantages | ReinforcePpBaselineAdvantages | GaeConfig
) -> Doubles:
    return whiten(values, batch.mask, ddof=settings.ddof, epsilon=settings.epsilon, stabilizer=settings.stabilizer)


def _token_rewards(attempts: Attempts, ref: Column | None, kl: KlInReward) -> tuple[Doubles, dict[str, Metric]]:
    """The rewards of tokens [N], less the KL penalty, and what it was."""
    batch = attempts.batch
    if not kl.coef:
        nothing = np.zeros(batch.num_tokens)
        rewards = rewards_with_kl(attempts.rewards_A, nothing, batch.mask, attempts.offsets, kl_coef=0.0, clip=kl.clip)
        return rewards, {}
    estimate, metrics = _kl_of_tokens(batch, ref, kl)
    rewards = rewards_with_kl(attempts.rewards_A, estimate, batch.mask, attempts.offsets, kl_coef=kl.coef, clip=kl.clip)
    return rewards, metrics


def _kl_of_tokens(batch: Batch, ref: Column | None, kl: KlInReward) -> tuple[Doubles, dict[str, Metric]]:
    """The estimate of each token [N], 0 where the policy did not write, and its mean; without greedy attempts, whose
    tokens are no sample of the policy."""
    if ref is None:
        raise ConfigError(
            f"kl_coef={kl.coef} asks for a KL penalty in the reward, and no reference log-probs came. "
            'Pass ref=logprobs(batch, on="reference"), or set kl_coef=0.'
        )
    sampled = np.concatenate([t.logprobs_T for t in batch.trajectories])
    estimate = np.where(batch.mask != 0, kl_estimate(sampled, ref.values, kl.kind), 0.0)
    sampled_B = np.asarray([not t.is_baseline for t in batch.trajectories], np.bool_)
    sampled_N = (batch.mask != 0) & np.repeat(sampled_B, np.diff(batch.offsets))
    return estimate, {"credit/kl": Metric("mean", float(estimate[sampled_N].sum()), int(sampled_N.sum()))}


def _remax(attempts: Attempts, rewards: Doubles) -> tuple[Doubles, dict[str, Metric]]:
    """Advantages [N] with the greedy attempt of each group as baseline; DataError for a group without exactly one."""
    greedy_A = np.asarray([t.is_baseline for t in attempts.trajectories], np.bool_)
    num_groups = int(attempts.groups_A.max(initial=-1)) + 1
    greedy_P = np.bincount(attempts.groups_A[greedy_A], minlength=num_groups)
    if (greedy_P != 1).any():
        wrong = int(np.flatnonzero(greedy_P != 1)[0])
        key = attempts.trajectories[int(np.flatnonzero(attempts.groups_A == wrong)[0])].key
        raise DataError(
            f"the group of draw {key.draw} by {key.model!r} has {int(greedy_P[wrong])} greedy attempts, and remax "
            'takes its baseline from exactly one. Sample one more attempt greedily, with info["greedy"] true: '
            "rollout with greedy=true does."
        )
    baseline_P = np.zeros(num_groups)
    baseline_P[attempts.groups_A[greedy_A]] = attempts.rewards_A[greedy_A]
    batch = attempts.batch
    advantages, _ = remax_advantages(rewards, baseline_P[attempts.groups_A], batch.mask, attempts.offsets)
    advantages = np.where(attempts.spread(greedy_A.astype(np.float64)) != 0, 0.0, advantages)
    metrics = _group_metrics(attempts.groups_A[~greedy_A], attempts.rewards_A[~greedy_A])
    metrics["credit/baseline"] = Metric("mean", float(baseline_P.sum()), num_groups)
    return advantages, metrics


def _group_metrics(
    groups_A: NDArray[np.int64], rewards_A: Doubles, parts_KA: Doubles | None = None
) -> dict[str, Metric]:
    """Shares of groups without a difference in any reward [K, A], and of groups of one; the rewards' spread."""
    siblings = Siblings.of(rewards_A, groups_A)
    constant_P = siblings.constant_P
    if parts_KA is not None:
        constant_P = np.logical_and.reduce([Siblings.of(part_A, groups_A).constant_P for part_A in parts_KA])
    several_P = ~siblings.single_P
    num_groups = len(siblings.sizes_P)
    return {
        "credit/constant_groups": Metric("mean", int((constant_P & several_P).sum()), num_groups),
        "credit/single_groups": Metric("mean", int(siblings.single_P.sum()), num_groups),
        "credit/reward_std": Metric("mean", float(siblings.deviations(1)[several_P].sum()), int(several_P.sum())),
    }


def _not_negative(attempts: Attempts) -> Doubles:
    """The rewards; RewardError if one is below 0, where a group's mean would be no rate of success."""
    if (attempts.rewards_A < 0).any():
        wrong = attempts.trajectories[int(np.flatnonzero(attempts.rewards_A < 0)[0])]
        raise RewardError(
            f"trajectory {wrong.key} has the reward {wrong.reward}, and maxrl divides by the mean reward of a group, "
            "so rewards must be 0 or more. Use rewards from 0 to 1, or another estimator."
        )
    return attempts.rewards_A
