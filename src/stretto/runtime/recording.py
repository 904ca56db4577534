"""Writes what happens into the run store, in the words of its event schema. The only place where runtime values become
events; it decides nothing."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.config.by_step import ByStep, value_at
from stretto.roles import DataPlane
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import drop_metrics
from stretto.runtime.evaluation import EvalResult
from stretto.runtime.filters import Filter
from stretto.runtime.phases import Phase
from stretto.runtime.pool import Taken
from stretto.runtime.runner import GroupRecord
from stretto.runtime.tried import Tried
from stretto.runtime.worker import StepResult
from stretto.store import (
    EVALUATION,
    Body,
    ErrorBody,
    EvalBody,
    Example,
    GroupBody,
    NodeBody,
    NodeTime,
    PhaseBody,
    PublishBody,
    RunStore,
    StepBody,
)
from stretto.types import Metric, Metrics, StepReport, merge_metrics

__all__ = [
    "Clock",
    "Recorder",
    "batch_metrics",
    "draw_metrics",
    "staleness_metrics",
    "step_metrics",
]

NUM_EXAMPLES = 64
"""Prompts whose first attempt an evaluation's event keeps: the same each time, to compare before and after."""


@dataclass(slots=True)
class Clock:
    """Adds up the wall seconds of a step by what the driver was doing: ``with clock("time/train_s")``. A step's other
    numbers are noted here."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _name: str = ""
    _since: float = 0.0

    def __call__(self, name: str) -> "Clock":
        self._name = name
        return self

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self._since
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + spent

    def note(self, name: str, value: float) -> None:
        """A number of the step that is under way."""
        self.seconds[name] = value

    def lap(self) -> dict[str, float]:
        """What there is since the last lap."""
        seconds, self.seconds = self.seconds, {}
        return seconds


class Recorder:
    """Records one run's phases, groups, steps, publications and evaluations."""

    def __init__(self, store: RunStore, plane: DataPlane) -> None:
        """``plane``: where groups lie that nobody has recorded yet."""
        self.store, self._plane = store, plane
        self._phase = ""
        self._filter = Filter()
        self._step = 0
        self._scheduled: Mapping[str, ByStep] = {}

    def enter(self, phase: Phase, step: int) -> None:
        """A phase begins, or goes on after ``step`` steps."""
        self._phase, self._step, self._filter = phase.name, step, phase.filter
        self._scheduled = phase.scheduled
        self._event(PhaseBody(state="start", workflow=phase.graph.name, steps=phase.steps), step)
        self.store.flush()

    def leave(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """A phase ended, with these metrics of its last evaluation."""
        reason = "end of data"
        if phase.reached(metrics):
            reason = "reached"
        elif step >= phase.steps:
            reason = "missed" if phase.until else "steps"
        self._event(PhaseBody(state="end", workflow=phase.graph.name, steps=step, reason=reason), step)
        self.store.flush()

    def group(self, record: GroupRecord) -> None:
        """A draw ended: with its groups, with groups that a filter dropped, or without any."""
        why = record.dropped.why if record.dropped is not None else ""
        if record.drawn is None:
            body = GroupBody(draw=record.draw, uid=record.uid, n=0, state="dropped", why=why, nodes=record.nodes)
            self.store.group(body, phase=self._phase, step=record.step)
            return
        for node, facts in record.drawn.facts.items():
            body = GroupBody(
                draw=record.draw,
                uid=record.uid,
                n=facts.n,
                state="filtered" if record.dropped is not None else "finished",
                why=why,
                reward_mean=facts.reward_mean,
                nodes=record.nodes,
                by=record.by,
            )
            (group,) = (None,) if record.by else self._plane.get((record.drawn.refs[node],))
            self.store.group(body, group, phase=self._phase, step=record.step)

    def failed_nodes(self, nodes: Sequence[NodeTime], draw: int | None) -> None:
        """Nodes of a draw that ended the run."""
        for n in nodes:
            self._event(
                NodeBody(id=n.id, world="group", state=n.state, start_s=n.start_s, duration_s=n.duration_s, draw=draw),
                None,
            )

    def step(self, step: int, result: StepResult, taken: Taken, seconds: dict[str, float]) -> None:
        """Step ``step`` (from 0) was trained."""
        self._step = step + 1
        for n in result.nodes:
            body = NodeBody(id=n.id, world="step", state=n.state, start_s=n.start_s, duration_s=n.duration_s)
            self._event(body, step)
        metrics = step_metrics(step, result.report, taken, self._filter, self._scheduled) | seconds
        self._event(StepBody(metrics=metrics, cpu_s=self.store.cpu_s), step)

    def publish(self, version: int, sent: Metrics) -> None:
        """Weights were published."""
        duration_s, sent_bytes = sent["time/publish_s"].value, int(sent["publish/bytes"].value)
        self._event(PublishBody(version=version, duration_s=duration_s, bytes=sent_bytes), version, version)

    def evaluation(self, step: int, result: EvalResult) -> None:
        """An evaluation after ``step`` steps."""
        examples = tuple(_example(tried) for tried in result.tried[:NUM_EXAMPLES])
        body = EvalBody(
            name=result.name, accuracy=result.accuracy, n=result.n, metrics=result.metrics, examples=examples
        )
        self._event(body, step, step)

    def failed_evaluation(self, step: int, name: str, failure: Exception) -> None:
        """An evaluation after ``step`` steps that came to nothing."""
        self._event(ErrorBody.of(failure, f"{EVALUATION} {name} after step {step}"), step)

    def _event(self, body: Body, step: int | None, version: int | None = None) -> None:
        self.store.event(body, phase=self._phase, step=step, version=version)


def step_metrics(
    step: int, report: StepReport, taken: Taken, filter: Filter, scheduled: Mapping[str, ByStep]
) -> dict[str, float]:
    """The numbers of a step, all but its times; the values by step that hold in it among them."""
    batch = batch_metrics(taken.drawn) | staleness_metrics(taken.drawn, step)
    reduced = merge_metrics((report.metrics, batch, draw_metrics(taken, filter)))
    metrics = {name: metric.value for name, metric in sorted(reduced.items())}
    metrics |= {f"by_step/{key}": float(value_at(value, step)) for key, value in scheduled.items()}
    return {**metrics, "updates/skipped": float(len(report.skipped))}


def batch_metrics(drawn: Sequence[Drawn]) -> dict[str, Metric]:
    """What a step was trained on: counts, lengths, rewards."""
    merged = merge_metrics(facts.metrics for d in drawn for facts in d.facts.values())
    return {"batch/groups": Metric("sum", len(drawn)), **merged}


def staleness_metrics(drawn: Sequence[Drawn], step: int) -> dict[str, Metric]:
    """How many steps the policy's tokens lag the weights that step ``step`` changes; empty where it wrote none."""
    spans = [span for d in drawn for facts in d.facts.values() for span in facts.versions]
    if not spans:
        return {}
    lag = sum((step - s.version) * s.length for s in spans)
    return {
        "staleness/mean": Metric("mean", lag, sum(s.length for s in spans)),
        "staleness/max": Metric("max", max(step - s.version for s in spans)),
    }


def draw_metrics(taken: Taken, filter: Filter) -> dict[str, Metric]:
    """How many draws a step took, what its filters dropped of them, and the mean reward before they did."""
    metrics = {"batch/draws": Metric("sum", len(taken.drawn) + len(taken.dropped))}
    if filter.kinds:
        metrics |= drop_metrics(taken.dropped.values(), filter.kinds)
        rewards = [r for drawn in (*taken.drawn, *taken.dropped.values()) for r in drawn.scores.get("", ())]
        metrics["filter/mean_reward"] = Metric("mean", math.fsum(rewards), len(rewards))
    return metrics


def _example(tried: Tried) -> Example:
    prompt, attempt = tried.prompt, tried.attempts[0]
    answer = prompt.data.get("answer", prompt.data.get("chosen"))
    return Example(uid=prompt.uid, prompt=prompt.text, completion=attempt.text, answer=answer, reward=attempt.reward)
