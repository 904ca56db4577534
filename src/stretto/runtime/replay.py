"""Recorded steps made again: a learner is brought to where a run's stood, and trains on the groups that are recorded.

    checkpoint (or the model) ──▶ the steps between, from rollouts/ ──▶ the step that is asked for, every edge kept

No engine and no judge. Synchronous: all of it runs in the calling thread, where a debugger may stop it. Owns which
groups were a step's and where to begin; what a node's call means beyond that is the caller's ``call``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from stretto.errors import ConfigError, StoreError
from stretto.plane.local import LocalPlane
from stretto.roles import TrainBackend
from stretto.runtime.binding import StepBinding
from stretto.runtime.build import Job
from stretto.runtime.calling import CallStepNode, call_step_node
from stretto.runtime.checkpoint import Position, position_after
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped
from stretto.runtime.phases import Phase
from stretto.runtime.pool import Taken
from stretto.runtime.recording import step_metrics
from stretto.runtime.saved import one_boundary
from stretto.runtime.worker import Edges, as_report, run_program
from stretto.store import (
    OF_THE_MACHINE,
    PHASES,
    Checkpoint,
    GroupBody,
    NodeTime,
    RecordedGroup,
    RunView,
    StepBody,
    list_checkpoints,
)
from stretto.store.manifest import checkpoint_order, verify
from stretto.types import Json

__all__ = ["Past", "Replay", "ReplayedStep", "Start", "start_before"]

NOT_MADE_AGAIN = (*OF_THE_MACHINE, "publish/")
"""How the metrics begin that a step without an engine has none of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayedStep:
    """A step that was made again: its groups by the node that gave them, and what each per-step node gave and took.

    ``metrics``: its numbers but for times; None if it was not run to its end.
    """

    groups: Edges
    values: Mapping[str, object]
    nodes: tuple[NodeTime, ...]
    metrics: Mapping[str, float] | None


class Past:
    """What a run recorded of its steps."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.plane = LocalPlane()
        self._groups = cache(self._read_groups)

    def steps(self, phase: str) -> range:
        """The steps of a phase that were trained, from 0 (of a fork: from where it began)."""
        done = [e.step for e in self.view.events if isinstance(e.body, StepBody) and e.phase == phase]
        known = [step for step in done if step is not None]
        return range(min(known), max(known) + 1) if known else range(0)

    def metrics(self, phase: str, step: int) -> Mapping[str, float] | None:
        """The recorded numbers of a step but for times and publication; None if it was not trained to its end."""
        for e in self.view.events:
            if isinstance(e.body, StepBody) and (e.phase, e.step) == (phase, step):
                return {name: value for name, value in e.body.metrics.items() if not name.startswith(NOT_MADE_AGAIN)}
        return None

    def groups(self, phase: str, step: int) -> list[RecordedGroup]:
        """The recorded groups of a step, filtered ones too, by draw."""
        return self._groups(phase).get(step, [])

    def taken(self, phase: Phase, step: int) -> Taken:
        """What a step trained on, and the draws that were dropped on its way. Raises ConfigError if the record does not
        hold all of it."""
        node = one_boundary(phase.graph)
        found = self.groups(phase.name, step)
        drawn = tuple(Drawn.of(r.group.draw, {node: r.group}, self.plane) for r in found if not r.why)
        metrics = self.metrics(phase.name, step)
        want = phase.pool.groups_per_step if metrics is None else int(metrics["batch/groups"])
        if len(drawn) != want:
            raise self._missing(phase.name, step, len(drawn), want)
        dropped = {r.group.draw: phase.filter.judge(r.group.draw, {node: r.group}) for r in found if r.why}
        failed = {
            e.body.draw: Dropped(kind="failed", why=e.body.why)
            for e in self.view.events
            if isinstance(e.body, GroupBody) and e.body.state == "dropped" and (e.phase, e.step) == (phase.name, step)
        }
        every = {draw: why for draw, why in {**dropped, **failed}.items() if why is not None}
        return Taken(drawn=drawn, dropped=dict(sorted(every.items())))

    def _missing(self, phase: str, step: int, found: int, want: int) -> ConfigError:
        run, there = self.view.name, self.steps(phase)
        parent = self.view.info.parent
        if found:
            return ConfigError(
                f"run {run!r} has recorded {found} of the {want} groups of step {step} of phase {phase}, so that step "
                "cannot be made again. Choose an earlier one."
            )
        known = f"its steps there are {there[0]} to {there[-1]}, counted from 0" if there else "it has none there"
        before = there and step < there[0] and parent is not None
        remedy = f"It is a fork: look at run {parent!r} for what came before" if before else "Choose one of them"
        return ConfigError(f"run {run!r} has recorded no group of step {step} of phase {phase}: {known}. {remedy}.")

    def _read_groups(self, phase: str) -> dict[int, list[RecordedGroup]]:
        by_step: dict[int, list[RecordedGroup]] = {}
        for recorded in self.view.groups(phase, filtered=True):
            if recorded.step is not None:
                by_step.setdefault(recorded.step, []).append(recorded)
        trained = {step: self.metrics(phase, step) for step in self.steps(phase)}
        _move(by_step, {step: int(found["batch/groups"]) for step, found in trained.items() if found is not None})
        return by_step


def _move(by_step: dict[int, list[RecordedGroup]], trained: Mapping[int, int]) -> None:
    """Put draws where they were trained on. At the end of the data a step that lost draws takes those of later ones,
    lowest first, and what had finished by then is recorded with the step it was drawn for."""

    def kept(step: int) -> list[RecordedGroup]:
        return [r for r in by_step.get(step, ()) if not r.why]

    if sum(trained.values()) != sum(len(kept(step)) for step in trained):
        return  # something else is amiss, and is said when the step is asked for
    for step, want in trained.items():
        for later in (s for s in trained if s > step):
            for recorded in kept(later)[: max(0, want - len(kept(step)))]:
                by_step[later].remove(recorded)
                by_step.setdefault(step, []).append(recorded)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """Where a replay begins: at a checkpoint, or without one at the model. ``skipped``: damaged ones, with why."""

    at: Position
    checkpoint: Checkpoint | None
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "the model as it was loaded" if self.checkpoint is None else f"checkpoint {self.checkpoint.path.name}"


def start_before(past: Past, job: Job, index: int, step: int) -> Start:
    """The newest whole checkpoint from which ``step`` of phase ``index`` is still to come, else the beginning.

    Raises ResumeError if the job is another one than the checkpoint was taken with, ConfigError for a fork whose own
    beginning is saved no more.
    """
    view = past.view
    last = (PHASES.index(job.phases[index].name), step)
    skipped: list[str] = []
    for path in reversed(list_checkpoints(view.path / "checkpoints")):
        order = checkpoint_order(path.name)
        if order is None or order > last:
            continue
        try:
            checkpoint = verify(path)
        except StoreError as error:
            skipped.append(f"checkpoint {path.name} was passed over: {error}")
            continue
        at = position_after(checkpoint, job)
        if (at.phase_index, at.steps_done) <= (index, step):
            return Start(at=at, checkpoint=checkpoint, skipped=tuple(skipped))
    begun = [phase.name for phase in job.phases[: index + 1] if past.steps(phase.name).start > 0]
    if begun and view.info.parent is not None:
        raise ConfigError(
            f"run {view.name!r} is a fork of {view.info.parent!r} that begins at step {past.steps(begun[0]).start}, "
            f"and no checkpoint from before step {step} is left of it. Choose a later step, or save with a larger "
            "save.keep_last."
        )
    return Start(at=Position(), checkpoint=None, skipped=tuple(skipped))


class Replay:
    """A learner on its way through recorded steps. ``index`` and ``done``: its phase, and how many steps of it."""

    def __init__(self, job: Job, backend: TrainBackend, past: Past, call: CallStepNode = call_step_node) -> None:
        self._job, self._backend, self._past, self._call = job, backend, past, call
        self._memory: dict[str, Json] = {}
        self.index = self.done = 0

    @property
    def phase(self) -> Phase:
        """The phase it is in."""
        return self._job.phases[self.index]

    def begin(self, start: Start) -> None:
        """Take the state of a checkpoint, or that of a run that begins."""
        if start.checkpoint is not None:
            self._backend.load(start.checkpoint.path)
        if start.at.pool is None or start.at.steps_done == 0:
            self._enter(start.at.phase_index)
        else:
            self.index, self.done = start.at.phase_index, start.at.steps_done
            self._memory = dict(start.at.memory)

    def until(self, index: int, step: int) -> None:
        """Train on what is recorded, until ``step`` of phase ``index`` comes next."""
        assert (self.index, self.done) <= (index, step), (self.index, self.done, index, step)
        while (self.index, self.done) != (index, step):
            if self.index < index and self.done == self._past.steps(self.phase.name).stop:
                self._enter(self.index + 1)
            elif not self.phase.trains:
                self.done += 1
            else:
                self.step()

    def step(self, through: str | None = None) -> ReplayedStep:
        """Make the next step again: whole, or ``through`` a node and no further (then the replay is at its end)."""
        phase, step = self.phase, self.done
        taken = self._past.taken(phase, step)
        nodes = taken.drawn[0].refs
        groups = {node: self._past.plane.get([d.refs[node] for d in taken.drawn]) for node in nodes}
        binding = StepBinding(
            backend=self._backend, lr=lambda model: phase.lr(model, step), step=step, memory=self._memory
        )
        values, nodes = run_program(phase.graph, groups, binding, self._call, through)
        if through is not None:
            return ReplayedStep(groups=groups, values=values, nodes=nodes, metrics=None)
        phase.end_step(self._backend, step)
        self.done += 1
        report = as_report(phase.graph, values[phase.graph.output])
        metrics = step_metrics(step, report, taken, phase.filter, phase.scheduled)
        return ReplayedStep(groups=groups, values=values, nodes=nodes, metrics=metrics)

    def _enter(self, index: int) -> None:
        """Begin a phase, as the driver does."""
        self.index, self.done = index, 0
        self._memory = {}
        self.phase.begin(self._backend)
