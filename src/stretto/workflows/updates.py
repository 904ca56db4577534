"""The updates of one step: a batch cut into parts, each with its own denominators, and what they are made of.

Owns no formula: those are in ``stretto.algorithms``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.controllers import adapted_coef
from stretto.algorithms.covariance import selection_column
from stretto.algorithms.off_policy import Correction, proximal_logprobs, staleness
from stretto.config.algorithms import (
    AdaptiveKl,
    ClipCovLoss,
    KlCovLoss,
    LossTerms,
    PolicyLoss,
    ProximalKind,
    UpdateSettings,
    loss_ref,
)
from stretto.config.algorithms.inert import OFF_SAMPLER
from stretto.config.by_step import ByStep
from stretto.errors import ConfigError
from stretto.roles import Memory, Train
from stretto.types import Batch, Column, LossRef, Metric, Metrics, UpdateReport, merge_metrics

__all__ = [
    "Objective",
    "check_settings",
    "current_coef",
    "each_part",
    "old_logprobs",
    "run_updates",
    "steer",
    "weights_of",
]


SEEDS_OF_STEP = 1000
"""Updates of a step that draw by seeds of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What the policy is updated by. ``columns``: of the whole batch. ``right_from``: the least reward of attempts to
    imitate as well; None: none are."""

    loss: PolicyLoss
    terms: LossTerms
    columns: tuple[Column, ...]
    correction: Correction | None = None
    right_from: float | None = None


def check_settings(
    loss: PolicyLoss, terms: LossTerms, adaptive: AdaptiveKl | None, proximal: ProximalKind, updates: UpdateSettings
) -> None:
    """Raises ConfigError for what a recipe would refuse, and a workflow of one's own may say."""
    if adaptive is not None and terms.kl_coef == 0:
        raise ConfigError("adaptive steers the weight of the KL term, and terms.kl_coef=0 leaves that out. Set it.")
    count = updates.epochs * updates.minibatches
    if proximal == "detach" and count > 1 and loss.type not in OFF_SAMPLER:
        raise ConfigError(
            f"proximal=detach makes every ratio of {loss.type} 1, and of {count} updates of a step the later ones need "
            "it. Pass proximal='recompute' and recomputed=logprobs(batch)."
        )


def run_updates(model: Train, batch: Batch, objective: Objective, updates: UpdateSettings) -> UpdateReport:
    """The updates of the policy over ``batch``."""
    ref = loss_ref(objective.loss, objective.terms)

    def prepare(part: Batch, number: int) -> tuple[tuple[Column, ...], LossRef]:
        keep = _keep(part, objective.correction)
        columns = [column.of(part) for column in objective.columns]
        columns.append(weights_of(part, updates, keep))
        if objective.correction is not None:
            columns.append(objective.correction.weights.of(part))
        if isinstance(objective.loss, ClipCovLoss | KlCovLoss):
            (current,) = model.score(part, frozenset({"logprobs"}))
            by_name = {column.name: column for column in columns}
            seed = model.step * SEEDS_OF_STEP + number
            columns.append(
                selection_column(
                    part,
                    current,
                    by_name["advantages"],
                    objective.loss,
                    old=by_name.get("old_logprobs"),
                    keep=keep,
                    seed=seed,
                )
            )
        if objective.right_from is not None:
            columns.append(_imitation(part, objective.right_from, keep))
        return tuple(columns), ref

    return each_part(model, batch, updates, prepare)


def each_part(
    model: Train,
    batch: Batch,
    updates: UpdateSettings,
    prepare: Callable[[Batch, int], tuple[tuple[Column, ...], LossRef]],
) -> UpdateReport:
    """One update for each part of each pass. ``prepare`` is given a part and the number of its update in the step, and
    gives columns of the part (or of more rows), and the loss."""
    reports: list[UpdateReport] = []
    for _ in range(updates.epochs):
        for part in batch.split(updates.minibatches):
            columns, loss = prepare(part, len(reports))
            reports.append(model.learn(part, tuple(column.of(part) for column in columns), loss))
    if len(reports) == 1:
        return reports[0]
    metrics = merge_metrics(report.metrics for report in reports)
    # A loss is a sum over its update; of several updates, the mean is shown.
    metrics |= {k: Metric("mean", m.total, len(reports)) for k, m in metrics.items() if k == "loss"}
    skipped = [report.skipped for report in reports if report.skipped is not None]
    why = f"{len(skipped)} of {len(reports)} updates: {skipped[0]}" if skipped else None
    return UpdateReport(model=model.model, metrics=metrics, skipped=why)


def weights_of(part: Batch, updates: UpdateSettings, keep: Column | None = None) -> Column:
    """The Column ``weights`` of one update."""
    return aggregation_weights(part, updates.aggregate, norm=updates.norm, empty_rows=updates.empty_rows, keep=keep)


def old_logprobs(
    batch: Batch, proximal: ProximalKind, recomputed: Column | None, *, alpha: float | None, step: int
) -> Column | None:
    """The Column ``old_logprobs``, or None where the loss takes its own."""
    if proximal in ("recompute", "interpolate") and recomputed is None:
        raise ConfigError(
            f"proximal={proximal} needs the policy's log-probs before the step, and update_policy was not given any. "
            "Pass recomputed=logprobs(batch)."
        )
    sampled = np.concatenate([np.zeros(0), *(t.logprobs_T for t in batch.trajectories)])
    lag = staleness(batch, step) if proximal == "interpolate" and alpha is None else None
    values = None if recomputed is None else recomputed.values
    old = proximal_logprobs(proximal, sampled, values, alpha=alpha, staleness_N=lag)
    return None if old is None else Column.per_token("old_logprobs", batch, old)


def current_coef(memory: Memory, coef: float | ByStep, adaptive: AdaptiveKl | None) -> float:
    """The KL coefficient of this step: ``coef`` at first and where it does not adapt, else what the last step left.

    What was left by steps that began with another ``coef`` (in the run that a fork goes on from) counts no more.
    """
    assert not isinstance(coef, ByStep), "a node is called with the values of its step"
    kept = memory.value
    if adaptive is None or not isinstance(kept, Mapping) or kept.get("begun_with") != coef:
        return coef
    left = kept["kl_coef"]
    assert isinstance(left, float), left
    return left


def steer(
    memory: Memory, begun_with: float | ByStep, adaptive: AdaptiveKl | None, metrics: Metrics, name: str, batch: Batch
) -> Metrics:
    """``metrics`` with the coefficient in use; where it adapts, the next one is kept, by the KL that ``name`` measured
    over the tokens of the batch, per row. ``begun_with``: the coefficient of the first step."""
    if adaptive is None or name not in metrics:
        return metrics
    coef = current_coef(memory, begun_with, adaptive)
    sampled = [t.num_written for t in batch.trajectories if not t.is_baseline]
    rows = len(sampled)
    measured = metrics[name].value * sum(sampled) / max(rows, 1)
    following = adapted_coef(coef, measured, target=adaptive.target, horizon=adaptive.horizon, steps=rows)
    assert not isinstance(begun_with, ByStep)
    memory.value = {"kl_coef": following, "begun_with": begun_with}
    return {**metrics, "kl_coef": Metric("mean", coef), "kl_row": Metric("mean", measured)}


def _keep(part: Batch, correction: Correction | None) -> Column | None:
    """Which tokens are trained on, if not all that were written: rejected ones and greedy attempts are not."""
    greedy = [t.is_baseline for t in part.trajectories]
    if correction is None and not any(greedy):
        return None
    keep = part.mask if correction is None else correction.keep.of(part).values
    return Column.per_token("keep", part, keep * np.repeat([not g for g in greedy], np.diff(part.offsets)))


def _imitation(part: Batch, right_from: float, keep: Column | None) -> Column:
    """The Column ``imitate``: 1 / tokens of attempts with at least this reward on each of theirs, 0 elsewhere; of those
    that are trained on."""
    right = [t.reward is not None and t.reward >= right_from for t in part.trajectories]
    kept = part.mask if keep is None else keep.values
    imitated = Column.per_token("keep", part, kept * np.repeat(right, np.diff(part.offsets)))
    return replace(aggregation_weights(part, "token_mean", keep=imitated), name="imitate")
