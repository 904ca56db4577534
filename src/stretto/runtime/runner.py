"""Runs the per-group part of a graph: one task per admitted draw, roles as services, results to the pool.

What a group cannot survive ends the run through ``pool.fail``; what its failure policy drops is replaced by the pool.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from stretto.environments.judge import GroupDropped
from stretto.graph import Graph, NodeSpec, boundary_inputs, run_group
from stretto.runtime.binding import GroupBinding
from stretto.runtime.calling import call_group_node, check_group
from stretto.runtime.drops import Dropped
from stretto.runtime.filters import Filter
from stretto.runtime.first_done import LEFT, AnyPool
from stretto.runtime.pool import Drawn
from stretto.store import NodeState, NodeTime
from stretto.types import Prompt

__all__ = ["GroupRecord", "Record", "Runner"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupRecord:
    """What became of one draw. ``drawn`` is None if it failed; ``dropped`` says why it is not trained on, or None."""

    step: int
    draw: int
    uid: str
    drawn: Drawn | None
    dropped: Dropped | None
    nodes: tuple[NodeTime, ...]


class Record(Protocol):
    """Where a runner says what became of its draws."""

    def group(self, record: GroupRecord) -> None:
        """A draw ended."""
        ...

    def failed_nodes(self, nodes: Sequence[NodeTime], draw: int) -> None:
        """A draw ended the run."""
        ...


class Runner:
    """The coroutines of one phase's draws."""

    def __init__(
        self,
        graph: Graph,
        binding: GroupBinding,
        prompt_of: Callable[[int], Prompt],
        record: Record,
        filter: Filter,
    ) -> None:
        self._graph, self._binding, self._prompt_of, self._record = graph, binding, prompt_of, record
        self._filter = filter
        self._boundary = boundary_inputs(graph)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pool: AnyPool | None = None
        self._held: dict[int, GroupRecord] = {}

    def serve(self, pool: AnyPool) -> None:
        """Name the pool whose draws are run (the two know each other)."""
        self._pool = pool

    def start(self, draw: int) -> None:
        """Begin a draw. Its prompt is chosen here, since the choice may depend on when it is admitted."""
        run = self._run(draw, self._prompt_of(draw))
        task = asyncio.get_running_loop().create_task(run, name=f"draw-{draw}")
        self._tasks[draw] = task
        task.add_done_callback(lambda _: self._tasks.pop(draw, None))

    def give_up(self, draw: int, dropped: Dropped) -> None:
        """End a draw that is under way."""
        self._tasks[draw].cancel()
        assert self._pool is not None
        uid, step = self._prompt_of(draw).uid, self._pool.step_of(draw)
        self._record.group(GroupRecord(step=step, draw=draw, uid=uid, drawn=None, dropped=dropped, nodes=()))

    def took(self, step: int, drawn: Sequence[Drawn]) -> None:
        """A step took these: record what could not be recorded before the step was known."""
        if self._pool is None or not self._pool.recorded_late:
            return
        for one in drawn:
            uid = next(iter(one.groups.values())).prompt.uid
            held = self._held.pop(one.draw, None)  # nothing is known of the nodes of an attempt before this one
            nodes = () if held is None else held.nodes
            self._record.group(GroupRecord(step=step, draw=one.draw, uid=uid, drawn=one, dropped=None, nodes=nodes))

    async def close(self) -> None:
        """Cancel what is running and wait for it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, draw: int, prompt: Prompt) -> None:
        """A draw, to its place in the pool. Whatever keeps it from there is handed to the driver, which raises it."""
        assert self._pool is not None
        try:
            record = await self._attempt(draw, prompt, self._pool)
            if self._pool.recorded_late and record.dropped is None:
                self._held[draw] = record
            else:
                self._record.group(record)
            if record.dropped is not None:
                self._pool.drop(draw, record.dropped)
            else:
                assert record.drawn is not None
                self._pool.finish(record.drawn)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:  # noqa: BLE001 - a draw that ends without a word would be waited for forever
            self._pool.fail(failure)

    async def _attempt(self, draw: int, prompt: Prompt, pool: AnyPool) -> GroupRecord:
        bind = partial(self._binding.bind, draw=draw, step=pool.admitted_for(draw))
        times: list[NodeTime] = []
        drawn: Drawn | None = None
        dropped: Dropped | None = None
        try:
            values = await run_group(
                self._graph, prompt, lambda spec, given: self._invoke(spec, given, bind(spec), times)
            )
            drawn = Drawn(draw=draw, groups={id: check_group(id, values[id], draw) for id in self._boundary})
            dropped = self._filter.judge(draw, drawn.groups) if pool.accepts(draw) else LEFT
        except GroupDropped as failure:
            dropped = Dropped(kind="failed", why=str(failure))
        except Exception:
            self._record.failed_nodes(times, draw)
            raise
        step = pool.step_of(draw)  # now: a draw may have moved to an earlier step while it ran
        return GroupRecord(step=step, draw=draw, uid=prompt.uid, drawn=drawn, dropped=dropped, nodes=tuple(times))

    async def _invoke(
        self, spec: NodeSpec, inputs: Mapping[str, object], handles: Mapping[str, object], times: list[NodeTime]
    ) -> object:
        start, begin = time.time(), time.perf_counter()
        state: NodeState = "failed"
        try:
            value = await call_group_node(self._graph, spec, inputs, handles)
            state = "done"
            return value
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            duration = time.perf_counter() - begin
            times.append(NodeTime(id=spec.id, start_s=start, duration_s=duration, state=state))
