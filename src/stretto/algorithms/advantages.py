"""Advantages: rewards in, one number per written token out. Owns group-relative and generalised advantage estimation,
whitening and KL penalties in the reward. Losses and how they are averaged are elsewhere. Numpy only, float64 inside.

Shapes: B trajectories, G siblings of one group, N tokens of all rows (``batch.offsets`` cuts them), as in ``types.py``.
Everything per token is 0 where ``mask`` is 0; whatever stood there does not matter.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.config.algorithms import KlKind
from stretto.errors import ConfigError, RewardError
from stretto.types import Array, Batch, Column, Credit, Masks, Metric

__all__ = [
    "gae",
    "gae_credit",
    "group_advantages",
    "group_credit",
    "judged_rewards",
    "kl_estimate",
    "place_rewards",
    "whiten",
]

Doubles = NDArray[np.float64]
Offsets = NDArray[np.int64]

WHITEN_EPS = 1e-8


def group_advantages(
    rewards_G: ArrayLike, *, scale: Literal["group_std", "none"] = "group_std", epsilon: float = 1e-6
) -> Doubles:
    """Rewards of siblings [..., G], centred on their mean and divided by ``std + epsilon`` (unbiased) or by nothing.

    Equal rewards give exactly 0, and so does a group of one: there is nothing to compare.
    Shao et al. 2024, arXiv:2402.03300, section 4.1.2; without the division Liu et al. 2025, arXiv:2503.20783.
    """
    rewards = np.asarray(rewards_G, np.float64)
    if rewards.shape[-1] < 2:
        return np.zeros_like(rewards)
    centred = rewards - rewards.mean(-1, keepdims=True)
    if scale != "none":
        centred = centred / (rewards.std(-1, ddof=1, keepdims=True) + epsilon)
    # A mean that is off by one ulp must not become an advantage.
    constant = rewards.max(-1, keepdims=True) == rewards.min(-1, keepdims=True)
    return np.where(constant, 0.0, centred)


def gae(
    rewards: Array, values: Array, mask: Masks, offsets: Offsets, *, gamma: float, lam: float
) -> tuple[Doubles, Doubles]:
    """Advantages and returns [N] of a ragged batch; tokens the policy did not write are skipped.

    Over the written tokens of a row, with value 0 after the last: ``delta_t = r_t + gamma V_{t+1} - V_t``,
    ``A_t = delta_t + gamma lam A_{t+1}``, ``R_t = A_t + V_t``. Schulman et al., arXiv:1506.02438, eq. 11-16.
    """
    written = np.flatnonzero(mask)
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[written]
    counts = np.bincount(row, minlength=len(offsets) - 1)
    place = np.arange(len(written)) - (np.cumsum(counts) - counts)[row]
    width = int(counts.max(initial=0))
    # Zeros to the right of a row's end are states of value 0 with reward 0, so rows of any length share the loop.
    rewards_BT = np.zeros((len(counts), width))
    values_BT = np.zeros((len(counts), width + 1))
    rewards_BT[row, place] = rewards[written]
    values_BT[row, place] = values[written]
    advantages_BT = np.zeros((len(counts), width + 1))
    for t in reversed(range(width)):
        delta = rewards_BT[:, t] + gamma * values_BT[:, t + 1] - values_BT[:, t]
        advantages_BT[:, t] = delta + gamma * lam * advantages_BT[:, t + 1]
    advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
    advantages[written] = advantages_BT[row, place]
    returns[written] = advantages[written] + values_BT[row, place]
    return advantages, returns


def whiten(values: Array, mask: Masks) -> Doubles:
    """``(x - mean) / sqrt(var + 1e-8)`` [N] over the written tokens, unbiased variance; one token alone gives 0."""
    kept = np.asarray(values, np.float64)[mask != 0]
    out = np.zeros(len(mask))
    if kept.size > 1:
        out[mask != 0] = (kept - kept.mean()) / np.sqrt(kept.var(ddof=1) + WHITEN_EPS)
    return out


def kl_estimate(logprobs: Array, ref_logprobs: Array, kind: KlKind) -> Doubles:
    """A per-token estimate of KL(policy || reference) from log-probs of sampled tokens, elementwise.

    With ``d = logprobs - ref_logprobs``: k1 is d, k2 is d^2/2, k3 is exp(-d) - 1 + d.
    Schulman 2020, "Approximating KL divergence". k1 and k3 are unbiased; as a penalty in the reward, only k1 has the
    gradient of KL(policy || reference) in expectation.
    """
    d = np.asarray(logprobs, np.float64) - np.asarray(ref_logprobs, np.float64)
    if kind == "k1":
        return d
    if kind == "k2":
        return d * d / 2
    return np.expm1(-d) + d


def place_rewards(rewards_B: Array, mask: Masks, offsets: Offsets) -> Doubles:
    """Token rewards [N]: the reward of a row on its last written token, 0 elsewhere. A row with none is left out."""
    placed = np.zeros(len(mask))
    written = np.flatnonzero(mask)
    ends = np.searchsorted(written, offsets[1:]) - 1
    has_any = ends >= np.searchsorted(written, offsets[:-1])
    placed[written[ends[has_any]]] = np.asarray(rewards_B, np.float64)[has_any]
    return placed


def judged_rewards(batch: Batch) -> Doubles:
    """The rewards of a batch [B]. One that is missing or not finite raises RewardError naming the trajectory."""
    # None becomes NaN here.
    rewards_B = np.asarray([t.reward for t in batch.trajectories], np.float64)
    if not np.isfinite(rewards_B).all():
        wrong = batch.trajectories[int(np.flatnonzero(~np.isfinite(rewards_B))[0])]
        raise RewardError(
            f"trajectory {wrong.key} has the reward {wrong.reward}, and advantages need a finite number. "
            "Judge every group before it is collected: score(group), or a reward that applies to it."
        )
    return rewards_B


def group_credit(batch: Batch, *, scale: Literal["group_std", "none"] = "group_std", epsilon: float = 1e-6) -> Credit:
    """Group-relative advantages of a batch: every written token of a trajectory gets the trajectory's.

    Siblings are the attempts of one draw by one Model; all parts of an attempt get its advantage. Groups without a
    difference, and groups of one, are counted.
    """
    rewards_B = judged_rewards(batch)
    # Each attempt counts once, whatever its number of parts: its last row stands for it.
    last_A = np.zeros(int(batch.attempts.max(initial=-1)) + 1, np.int64)
    last_A[batch.attempts] = np.arange(len(batch.keys))
    advantages_A = np.zeros(len(last_A))
    constant = single = groups = 0
    for attempts_PG in _siblings(batch, last_A):
        members_PG = rewards_B[last_A[attempts_PG]]
        advantages_A[attempts_PG] = group_advantages(members_PG, scale=scale, epsilon=epsilon)
        num, size = members_PG.shape
        groups += num
        single += num if size == 1 else 0
        constant += int((members_PG.max(1) == members_PG.min(1)).sum()) if size > 1 else 0
    per_token = np.repeat(advantages_A[batch.attempts], np.diff(batch.offsets)) * batch.mask
    return Credit(
        advantages=Column.per_token("advantages", batch, per_token),
        metrics={
            "credit/constant_groups": Metric("mean", constant, groups),
            "credit/single_groups": Metric("mean", single, groups),
        },
    )


def gae_credit(
    batch: Batch,
    values: Column,
    ref: Column | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whitened: bool = True,
    kl_coef: float = 0.0,
    kl_kind: KlKind = "k1",
) -> Credit:
    """Advantages and returns of a batch by GAE from the critic's ``values`` [N].

    With ``ref`` (the reference's log-probs) and ``kl_coef`` the reward of each token is lessened by ``kl_coef`` times
    the KL estimate between the sampler's log-probs and the reference's. Returns are taken before whitening. The parts
    of an attempt are one sequence, with its reward at the end of the last.
    """
    rewards_B = judged_rewards(batch)
    offsets = _attempt_offsets(batch)
    rewards = place_rewards(rewards_B[np.searchsorted(batch.offsets, offsets[1:]) - 1], batch.mask, offsets)
    metrics: dict[str, Metric] = {}
    if kl_coef:
        if ref is None:
            raise ConfigError(
                f"kl_coef={kl_coef} asks for a KL penalty in the reward, and no reference log-probs came. "
                'Pass ref=logprobs(batch, on="reference"), or set kl_coef=0.'
            )
        sampled = np.concatenate([t.logprobs_T for t in batch.trajectories])
        kl = np.where(batch.mask != 0, kl_estimate(sampled, ref.values, kl_kind), 0.0)
        rewards = rewards - kl_coef * kl
        metrics["credit/kl"] = Metric("mean", float(kl.sum()), batch.num_written)
    advantages, returns = gae(rewards, values.values, batch.mask, offsets, gamma=gamma, lam=lam)
    metrics["credit/return"] = Metric("mean", float(returns.sum()), batch.num_written)
    metrics["credit/advantage"] = Metric("mean", float(advantages.sum()), batch.num_written)
    if whitened:
        advantages = whiten(advantages, batch.mask)
    return Credit(
        advantages=Column.per_token("advantages", batch, advantages),
        returns=Column.per_token("returns", batch, returns),
        metrics=metrics,
    )


def _attempt_offsets(batch: Batch) -> Offsets:
    """Boundaries of attempts [A + 1]: those of rows, without the ones between the parts of an attempt."""
    if len(batch.keys) < 2:
        return batch.offsets
    begins = np.diff(batch.attempts) != 0
    assert int(begins.sum()) == int(batch.attempts.max()), (
        "parts of an attempt by one Model are neighbours in key order"
    )
    return batch.offsets[np.concatenate([[True], begins, [True]])]


def _siblings(batch: Batch, last_A: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The attempts of every group, the groups of one size stacked [P, G]. ``last_A`` has a row of each attempt."""
    attempts: dict[tuple[int, str], list[int]] = {}
    for attempt, row in enumerate(last_A):
        key = batch.keys[int(row)]
        attempts.setdefault((key.draw, key.model), []).append(attempt)
    by_size: dict[int, list[list[int]]] = {}
    for members in attempts.values():
        by_size.setdefault(len(members), []).append(members)
    return [np.asarray(groups, np.int64) for groups in by_size.values()]
