"""A worker: the Models of one process and the per-step program they run, on a thread of its own (the learner's).

One rank of training. It gets one call a step, and nothing else touches the backend.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeAlias, TypeVar

from stretto.config.by_step import at_step
from stretto.errors import GraphError
from stretto.graph import Graph, NodeSpec, run_step
from stretto.roles import DataPlane, TrainBackend
from stretto.runtime.binding import StepBinding
from stretto.runtime.calling import CallStepNode, call_step_node
from stretto.runtime.phases import Phase
from stretto.store import NodeTime
from stretto.types import Group, Json, StepReport, UpdateReport
from stretto.waiting import Lane

__all__ = ["UNTRAINED", "Edges", "StepResult", "Worker", "as_report", "run_program"]

Edges: TypeAlias = Mapping[str, tuple[Group, ...]]
"""What crosses the boundary: by per-group node, the groups of the step in draw order."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """What the per-step program gave, and when each of its nodes ran."""

    report: StepReport
    nodes: tuple[NodeTime, ...]


UNTRAINED = StepResult(report=StepReport(metrics={}), nodes=())
"""Of a step that trains nothing."""


def of_step(spec: NodeSpec, step: int) -> NodeSpec:
    """A node with the settings that hold in ``step``."""
    return replace(spec, settings={name: at_step(value, step) for name, value in spec.settings.items()})


def run_program(
    graph: Graph,
    groups: Edges,
    binding: StepBinding,
    call: CallStepNode = call_step_node,
    through: str | None = None,
) -> tuple[dict[str, object], tuple[NodeTime, ...]]:
    """The values of the per-step nodes, with the settings of the binding's step, and when each ran: of all, or
    ``through`` a node and no further.

    ``call``: calls the function behind a node.
    """
    times: list[NodeTime] = []

    def invoke(spec: NodeSpec, inputs: Mapping[str, object]) -> object:
        start, begin = time.time(), time.perf_counter()
        spec = of_step(spec, binding.step)
        value = call(graph, spec, inputs, binding.bind(spec))
        duration = time.perf_counter() - begin
        times.append(NodeTime(id=spec.id, start_s=start, duration_s=duration, state="done"))
        return value

    return run_step(graph, groups, invoke, through), tuple(times)


class Worker:
    """Runs everything that touches the Models on one thread, which also makes them (``open``).

    ``phases`` are the run's; groups are read from ``plane``. ``memory``: what the nodes of the phase that runs keep
    from step to step; checkpoints hold it. The one that ``leads`` several ranks writes what is written once.
    """

    def __init__(self, phases: Sequence[Phase] = (), plane: DataPlane | None = None, *, leads: bool = True) -> None:
        self._thread = Lane("stretto-learner")
        self.backend: TrainBackend | None = None
        self.phases, self.leads = phases, leads
        self._plane = plane
        self.memory: dict[str, Json] = {}
        self.doing = ""
        """What it is doing, in words; for whoever asks from another thread."""
        self.state_writer: Callable[[Path], None] | None = None

    @property
    def models(self) -> TrainBackend:
        """The backend; to be used on this worker's thread."""
        assert self.backend is not None, "open the worker first"
        return self.backend

    @property
    def plane(self) -> DataPlane:
        """Where groups are read from."""
        assert self._plane is not None, "this worker was given no data plane"
        return self._plane

    async def open(self, make: Callable[[], TrainBackend]) -> None:
        """Make the backend on the learner's thread. It is closed also if nobody waits for it any more."""

        def opened() -> None:
            self.backend = make()

        await self.call(opened)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the learner's thread."""
        return await asyncio.wrap_future(self._thread.submit(lambda: function(*args, **kwargs)))

    def run(self, graph: Graph, groups: Edges, lr: Callable[[str], float], step: int) -> StepResult:
        """Run the per-step program once, as step ``step`` (from 0) of its phase, with the settings of that step."""
        binding = StepBinding(backend=self.models, lr=lr, step=step, memory=self.memory)

        def call(graph: Graph, spec: NodeSpec, inputs: Mapping[str, object], roles: Mapping[str, object]) -> object:
            self.doing = f"node {spec.id!r} of step {step}"
            return call_step_node(graph, spec, inputs, roles)

        try:
            values, times = run_program(graph, groups, binding, call)
        finally:
            self.doing = ""
        return StepResult(report=as_report(graph, values[graph.output]), nodes=times)

    def write_state(self, folder: Path) -> None:
        """Write the state that was last taken, once. On any thread, if it was copied."""
        write, self.state_writer = self.state_writer, None
        assert write is not None, "no state was taken"
        write(folder)

    def close(self) -> None:
        """Close the backend on its thread, then the thread, once what runs there is done."""
        closed = self._thread.submit(self._close_backend)
        self._thread.close()
        try:
            closed.result()
        finally:
            self._thread.join()

    def _close_backend(self) -> None:
        if self.backend is not None:
            self.backend.close()


def as_report(graph: Graph, value: object) -> StepReport:
    """The step's report; a workflow that ends in a single update needs no report node."""
    if isinstance(value, StepReport):
        return value
    if isinstance(value, UpdateReport):
        return StepReport(metrics=value.metrics, skipped={value.model: value.skipped} if value.skipped else {})
    raise GraphError(
        f"Workflow {graph.name!r} ends in node {graph.output!r}, which gave a {type(value).__name__}; a step must end "
        "in a StepReport or an UpdateReport. Return report(...) or the result of an update node."
    )
