"""A worker: the Models of one process and the per-step program they run, on a thread of its own (the learner's).

The driver sends it one call a step and waits; nothing else touches the backend.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeAlias, TypeVar

from stretto.config.by_step import at_step
from stretto.errors import GraphError
from stretto.graph import Graph, NodeSpec, run_step
from stretto.roles import TrainBackend
from stretto.runtime.binding import StepBinding
from stretto.runtime.calling import call_step_node
from stretto.store import NodeTime
from stretto.types import Group, Json, StepReport, UpdateReport

__all__ = ["StepResult", "Worker"]

Edges: TypeAlias = Mapping[str, tuple[Group, ...]]
"""What crosses the boundary: by per-group node, the groups of the step in draw order."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """What the per-step program gave, and when each of its nodes ran."""

    report: StepReport
    nodes: tuple[NodeTime, ...]


class Worker:
    """Runs everything that touches ``backend`` on one thread. ``backend`` is set by whoever builds it (``call``).

    ``memory``: what the nodes of the phase that runs keep from step to step; checkpoints hold it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stretto-learner")
        self.backend: TrainBackend | None = None
        self.memory: dict[str, Json] = {}

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the learner's thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))

    async def step(self, graph: Graph, groups: Edges, lr: Callable[[str], float], step: int) -> StepResult:
        """Run the per-step program once, as step ``step`` (from 0) of its phase, with the settings of that step."""
        return await self.call(self._step, graph, groups, lr, step)

    def close(self) -> None:
        """Close the backend on its thread, then the thread."""
        if self.backend is not None:
            self._thread.submit(self.backend.close).result()
        self._thread.shutdown(wait=True)

    def _step(self, graph: Graph, groups: Edges, lr: Callable[[str], float], step: int) -> StepResult:
        assert self.backend is not None
        binding = StepBinding(backend=self.backend, lr=lr, step=step, memory=self.memory)
        times: list[NodeTime] = []

        def invoke(spec: NodeSpec, inputs: Mapping[str, object]) -> object:
            start, begin = time.time(), time.perf_counter()
            now = replace(spec, settings={name: at_step(value, step) for name, value in spec.settings.items()})
            value = call_step_node(graph, now, inputs, binding.bind(spec))
            duration = time.perf_counter() - begin
            times.append(NodeTime(id=spec.id, start_s=start, duration_s=duration, state="done"))
            return value

        values = run_step(graph, groups, invoke)
        return StepResult(report=_as_report(graph, values[graph.output]), nodes=tuple(times))


def _as_report(graph: Graph, value: object) -> StepReport:
    """The step's report; a workflow that ends in a single update needs no report node."""
    if isinstance(value, StepReport):
        return value
    if isinstance(value, UpdateReport):
        return StepReport(metrics=value.metrics, skipped={value.model: value.skipped} if value.skipped else {})
    raise GraphError(
        f"Workflow {graph.name!r} ends in node {graph.output!r}, which gave a {type(value).__name__}; a step must end "
        "in a StepReport or an UpdateReport. Return report(...) or the result of an update node."
    )
