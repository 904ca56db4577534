"""The layer: a batch and its trainer log-probs in; a weight and a keep flag per token out, with metrics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.algorithms.off_policy.metrics import (
    bound_metrics,
    off_policy_metrics,
    rejection_metrics,
    weight_metrics,
    with_weight_ess,
)
from stretto.algorithms.off_policy.ratios import Doubles, Flags, LogRatios
from stretto.algorithms.off_policy.rejection import (
    reject_geometric,
    reject_kl,
    reject_negative,
    reject_older,
    reject_outliers,
    reject_sequences,
    reject_tokens,
)
from stretto.algorithms.off_policy.weights import importance_weights, normalize_weights
from stretto.config.algorithms.correction import CorrectionConfig
from stretto.errors import ConfigError
from stretto.types import Array, Batch, Column, Metrics

__all__ = ["Correction", "correct"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """What a correction says of each token.

    ``weights``: the Column ``correction`` [N, float64], which the loss of a token is multiplied by; 0 where it was
    rejected or not written. ``keep``: the Column ``keep`` [N, uint8], the mask without the rejected tokens, for the
    denominators. ``metrics``: under ``correction/``.
    """

    weights: Column
    keep: Column
    metrics: Metrics


def correct(
    batch: Batch,
    trainer: Column,
    config: CorrectionConfig,
    *,
    advantages: Column | None = None,
    old: Column | None = None,
) -> Correction:
    """Weights and rejections from ``trainer``, the log-probs [N] of the policy before the update, against the
    sampler's.

    ``advantages`` and ``old`` are read by ``reject.negative``; left out, ``old`` is the sampler's. A row is an attempt,
    with all its parts. Demonstrations, which no one sampled, are kept with weight 1 and measured by nothing. Rows and
    tokens are judged by their raw ratios; then what is kept is weighted. ConfigError for a column of another batch
    and for advantages that are missing.
    """
    sampler_N = np.concatenate([np.zeros(0), *(t.logprobs_T for t in batch.trajectories)])
    trainer_N = _values(batch, trainer)
    written_N, sampled_N = batch.mask != 0, _sampled(batch)
    ratios = LogRatios.between(trainer_N, sampler_N, sampled_N, _attempt_offsets(batch))
    rejected_N = _rejected(ratios, config)
    if config.reject.negative is not None:
        if advantages is None:
            raise ConfigError(
                "algorithm.correction.reject.negative looks at advantages, and none came. "
                "Pass advantages=credit.advantages."
            )
        old_N = sampler_N if old is None else _values(batch, old)
        moved = LogRatios.between(trainer_N, old_N, sampled_N, ratios.offsets)
        rejected_N = rejected_N | reject_negative(moved, _values(batch, advantages), config.reject.negative.delta)
    if config.reject.older is not None:
        rejected_N = rejected_N | reject_older(batch, config.reject.older)
    keep_N = written_N & ~rejected_N
    weights_N = _weights(ratios, keep_N & sampled_N, config)
    metrics = {
        **off_policy_metrics(trainer_N, sampler_N, ratios, log_ratio_clamp=config.log_ratio_clamp),
        **rejection_metrics(keep_N, ratios),
        **weight_metrics(weights_N, sampled_N),
        **_bound_metrics(ratios, config),
    }
    weights_N = np.where(keep_N & ~sampled_N, 1.0, weights_N)
    return Correction(
        weights=Column.per_token("correction", batch, weights_N),
        keep=Column.per_token("keep", batch, keep_N.astype(np.uint8)),
        metrics=with_weight_ess({f"correction/{name}": metric for name, metric in metrics.items()}),
    )


def _rejected(ratios: LogRatios, config: CorrectionConfig) -> Flags:
    """What the criteria that read ratios alone leave out [N]."""
    reject, found = config.reject, np.zeros(len(ratios.d_N), np.bool_)
    for bounds, rejects in (
        (reject.token, reject_tokens),
        (reject.sequence, reject_sequences),
        (reject.geometric, reject_geometric),
        (reject.outlier, reject_outliers),
    ):
        if bounds is not None:
            found |= rejects(ratios, bounds.lower, bounds.upper)
    for criterion, bound in reject.kl.items():
        found |= reject_kl(ratios, criterion, (bound,), log_ratio_clamp=config.log_ratio_clamp)
    return found


def _weights(ratios: LogRatios, keep_N: Flags, config: CorrectionConfig) -> Doubles:
    """The weights of what is kept [N], 0 elsewhere."""
    if config.weights == "none":
        return keep_N.astype(np.float64)
    lower, upper = config.bounds
    weights_N = importance_weights(
        ratios, config.weights, mode=config.mode, lower=lower, upper=upper, log_ratio_clamp=config.log_ratio_clamp
    )
    if config.normalize:
        return normalize_weights(weights_N, keep_N, ratios, config.weights)
    return np.where(keep_N, weights_N, 0.0)


def _bound_metrics(ratios: LogRatios, config: CorrectionConfig) -> Metrics:
    """What the bounds of the weights act on, where there are weights."""
    if config.weights == "none":
        return {}
    raw_N = importance_weights(ratios, config.weights, log_ratio_clamp=config.log_ratio_clamp)
    lower, upper = config.bounds
    return bound_metrics(raw_N, ratios.written_N, lower, upper)


def _values(batch: Batch, column: Column) -> Array:
    if column.offsets is None or column.keys != batch.keys or len(column.values) != batch.num_tokens:
        raise ConfigError(
            f"the column {column.name!r} is not a per-token column of the batch that is corrected. "
            "Make it with Column.per_token from this batch."
        )
    return column.values


def _attempt_offsets(batch: Batch) -> NDArray[np.int64]:
    """Boundaries of attempts [A + 1]; the parts of one are neighbours in key order."""
    return batch.offsets[np.append(0, np.cumsum(np.bincount(batch.attempts)))]


def _sampled(batch: Batch) -> Flags:
    """Which tokens [N] an engine wrote; a demonstration was written by no version."""
    versioned = [bool(t.versions) for t in batch.trajectories]
    return (batch.mask != 0) & np.repeat(np.asarray(versioned, np.bool_), np.diff(batch.offsets))
