"""Recorded steps made again part by part: weights, groups, what every node gave, and gradient and weights of every
update, in the order in which they come to be. Two runs that are watched from the same step can be held side by side.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stretto.graph import Graph, NodeSpec
from stretto.roles import NamedTensor, ShowsGradients, TrainBackend, TrainMemory, Want
from stretto.runtime.build import Job, needed_models
from stretto.runtime.calling import call_step_node
from stretto.runtime.edges import Leaf, array_of, leaves_of
from stretto.runtime.replay import Past, Replay, Start
from stretto.types import Batch, Column, LossRef, Metrics, UpdateReport

__all__ = ["BEFORE", "Part", "Watcher", "watch"]

BEFORE = "before the step"
"""How the words for the weights end with which the steps begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that came to be in a step: ``what`` of a ``node`` (empty: of the step itself)."""

    phase: str
    step: int
    node: str
    what: str


class Watcher(Protocol):
    """Who is shown every tensor and number of every part, in order."""

    @property
    def satisfied(self) -> bool:
        """Whether it has seen enough; asked after every step."""
        ...

    def see(self, part: Part, name: str, leaf: Leaf) -> None:
        """A tensor, which may change once this returns, or the text of a number."""
        ...


def watch(
    job: Job,
    backend: TrainBackend,
    past: Past,
    start: Start,
    span: tuple[tuple[int, int], tuple[int, int]],
    by: Watcher,
) -> None:
    """Show ``by`` the steps from the first of ``span`` up to, and without, the second; each is (phase, step).

    The weights before the first are shown too.
    """
    first, stop = span
    shown = _Shown(job, by)
    watched = _Watched(backend, shown)
    replay = Replay(job, watched, past, shown.call)
    replay.begin(start)
    replay.until(*first)
    shown.enter(replay)
    for model in sorted(needed_models(job.graphs)):
        shown.tensors("", f"weights of {model} {BEFORE}", backend.tensors(model))
    while (replay.index, replay.done) < stop and not by.satisfied:
        shown.enter(replay)
        taken = past.taken(replay.phase, replay.done)
        for node in taken.drawn[0].refs:
            for group in past.plane.get([drawn.refs[node] for drawn in taken.drawn]):
                shown.value(node, "the groups of the step", group)
        replay.step()
        shown.active = False  # what begins a phase is no step
        if replay.index < stop[0] and replay.done == past.steps(replay.phase.name).stop:
            replay.until(replay.index + 1, 0)


class _Shown:
    """Where the replay stands, for what is shown."""

    def __init__(self, job: Job, by: Watcher) -> None:
        self._by = by
        self.active = False
        self.node = ""
        self._phase, self._step = "", 0
        self._updates: dict[str, int] = {}

    def enter(self, replay: Replay) -> None:
        """The next step begins."""
        self._phase, self._step, self.active = replay.phase.name, replay.done, True
        self._updates = {}

    def call(self, graph: Graph, spec: NodeSpec, inputs: Mapping[str, object], roles: Mapping[str, object]) -> object:
        """Call a node, and show what it gave."""
        self.node = spec.id
        value = call_step_node(graph, spec, inputs, roles)
        self.value(spec.id, "what it gave", value)
        return value

    def value(self, node: str, what: str, value: object) -> None:
        """Show every part of a value."""
        if self.active:
            part = Part(phase=self._phase, step=self._step, node=node, what=what)
            for name, leaf in leaves_of(value):
                self._by.see(part, name, leaf)

    def tensors(self, node: str, what: str, tensors: Iterator[NamedTensor]) -> None:
        """Show every tensor."""
        if self.active:
            part = Part(phase=self._phase, step=self._step, node=node, what=what)
            for tensor in tensors:
                array = array_of(tensor.data)
                self._by.see(part, tensor.name, repr(tensor.data) if array is None else array)

    def count(self, model: str) -> int:
        """Which update of a Model in this step comes now, from 1."""
        self._updates[model] = self._updates.get(model, 0) + 1
        return self._updates[model]


class _Watched:
    """A TrainBackend whose updates are shown; all else is the backend's."""

    def __init__(self, backend: TrainBackend, shown: _Shown) -> None:
        self._backend, self._shown = backend, shown

    def score(self, model: str, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        return self._backend.score(model, batch, want)

    def accumulate(self, model: str, batch: Batch, columns: tuple[Column, ...], loss: LossRef) -> Metrics:
        return self._backend.accumulate(model, batch, columns, loss)

    def update(self, model: str, lr: float) -> UpdateReport:
        number, backend = self._shown.count(model), self._backend
        if isinstance(backend, ShowsGradients):
            self._shown.tensors(self._shown.node, f"gradient of {model}, update {number}", backend.gradients(model))
        report = backend.update(model, lr)
        self._shown.tensors(self._shown.node, f"weights of {model} after update {number}", backend.tensors(model))
        return report

    def tensors(self, model: str) -> Iterator[NamedTensor]:
        return self._backend.tensors(model)

    def copy(self, source: str, target: str) -> None:
        self._backend.copy(source, target)

    def reset_optimizer(self, model: str) -> None:
        self._backend.reset_optimizer(model)

    def capture(self, *, copy: bool = False) -> Callable[[Path], None]:
        return self._backend.capture(copy=copy)

    def set_memory(self, level: TrainMemory) -> None:
        self._backend.set_memory(level)

    def load(self, path: Path) -> None:
        self._backend.load(path)

    def export(self, model: str, path: Path) -> None:
        self._backend.export(model, path)

    def close(self) -> None:
        self._backend.close()
