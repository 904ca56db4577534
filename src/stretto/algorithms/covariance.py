"""Which tokens Clip-Cov and KL-Cov treat apart: those of high covariance between log-prob and advantage.

Chosen over a whole batch before its update, so that micro-batches and ranks cannot change the choice. Numpy, float64.
Cui et al. 2025, arXiv:2505.22617. N tokens of all rows, prompts included; nothing outside the mask matters.
"""

import numpy as np
from numpy.typing import NDArray

from stretto.algorithms.off_policy.weights import log_bound
from stretto.config.algorithms.losses import ClipCovLoss, KlCovLoss
from stretto.types import Array, Batch, Column

__all__ = ["draw_in_range", "select_top", "selection_column", "token_covariance"]

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]


def token_covariance(logprobs: Array, advantages: Array, mask: Array) -> Doubles:
    """``(A - mean A) (logp - mean logp)`` of every token [N], means over the mask; 0 outside it."""
    kept = np.asarray(mask) != 0
    covariance = np.zeros(len(kept))
    if kept.any():
        a, logp = (np.asarray(values, np.float64)[kept] for values in (advantages, logprobs))
        covariance[kept] = (a - a.mean()) * (logp - logp.mean())
    return covariance


def select_top(covariance: Array, mask: Array, *, top_fraction: float) -> Bools:
    """KL-Cov's choice [N]: the ``top_fraction`` of the mask's tokens with the largest covariance, rounded down and at
    least one. Of equal ones, the first."""
    places = np.flatnonzero(mask)
    selected = np.zeros(len(mask), bool)
    if len(places):
        count = max(1, int(len(places) * top_fraction))
        selected[places[np.argsort(-covariance[places], kind="stable")[:count]]] = True
    return selected


def draw_in_range(
    covariance: Array, mask: Array, *, cov_min: float, cov_max: float, max_fraction: float, seed: int = 0
) -> Bools:
    """Clip-Cov's choice [N]: of the tokens with cov_min < covariance < cov_max, at most ``max_fraction`` of the mask's
    (rounded down, at least one), drawn by ``seed``."""
    candidates = np.flatnonzero((np.asarray(mask) != 0) & (covariance > cov_min) & (covariance < cov_max))
    count = min(max(1, int(np.count_nonzero(mask) * max_fraction)), len(candidates))
    selected = np.zeros(len(mask), bool)
    selected[np.random.default_rng(seed).choice(candidates, count, replace=False)] = True
    return selected


def selection_column(
    batch: Batch,
    logprobs: Column,
    advantages: Column,
    loss: ClipCovLoss | KlCovLoss,
    *,
    old: Column | None = None,
    keep: Column | None = None,
    seed: int = 0,
) -> Column:
    """The Column ``selected`` [N] of a whole batch, 1.0 for the tokens that ``loss`` treats apart.

    ``logprobs``: the policy's, at the start of the update. ``old``: those of the ratio, where they differ: Clip-Cov
    leaves alone the tokens that PPO's bounds already cut, and ``seed`` is for its draw. ``keep``: 0 for tokens that are
    not trained on.
    """
    mask = batch.mask != 0 if keep is None else (batch.mask != 0) & (keep.values != 0)
    covariance = token_covariance(logprobs.values, advantages.values, mask)
    if isinstance(loss, KlCovLoss):
        selected = select_top(covariance, mask, top_fraction=loss.top_fraction)
    else:
        if old is not None:
            covariance = np.where(_clipped(logprobs, advantages, old, batch, loss), -np.inf, covariance)
        selected = draw_in_range(
            covariance,
            mask,
            cov_min=loss.cov_min,
            cov_max=loss.cov_max,
            max_fraction=loss.max_fraction,
            seed=seed,
        )
    return Column.per_token("selected", batch, selected.astype(np.float64))


def _clipped(logprobs: Column, advantages: Column, old: Column, batch: Batch, loss: ClipCovLoss) -> Bools:
    """Where a bound of the ratio acts [N]: it is above 1 + clip_high and A > 0, or below 1 - clip_low and A < 0."""
    written = np.where(batch.mask != 0, np.asarray(logprobs.values, np.float64) - old.values, 0.0)
    up, down = written > np.log1p(loss.clip_high), written < log_bound(1 - loss.clip_low)
    return (up & (advantages.values > 0)) | (down & (advantages.values < 0))
