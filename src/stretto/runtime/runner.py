"""Gives the draws of a phase to the rollers: one task per admitted draw, what comes of it to the pool.

What a draw cannot survive ends the run through ``pool.fail``; what its failure policy drops is replaced by the pool.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto.roles import DataPlane
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped
from stretto.runtime.first_done import LEFT, AnyPool
from stretto.runtime.fleet import Fleet
from stretto.runtime.roller import Draw
from stretto.store import NodeTime

__all__ = ["GroupRecord", "Record", "Runner"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupRecord:
    """What became of one draw. ``drawn`` is None if it failed; ``dropped`` says why it is not trained on, or None.
    ``by``: who has written its groups into the record, if they are there already."""

    step: int
    draw: int
    uid: str
    drawn: Drawn | None
    dropped: Dropped | None
    nodes: tuple[NodeTime, ...]
    by: str = ""


class Record(Protocol):
    """Where a runner says what became of its draws."""

    def group(self, record: GroupRecord) -> None:
        """A draw ended."""
        ...

    def failed_nodes(self, nodes: Sequence[NodeTime], draw: int) -> None:
        """A draw ended the run."""
        ...


class Runner:
    """The draws of phase ``phase``. ``item_of``: the place of the prompt that a draw takes; ``uid_of``: its name."""

    def __init__(
        self,
        fleet: Fleet,
        plane: DataPlane,
        phase: int,
        item_of: Callable[[int], int],
        uid_of: Callable[[int], str],
        record: Record,
    ) -> None:
        self._fleet, self._plane, self._phase, self._record = fleet, plane, phase, record
        self._item_of, self._uid_of = item_of, uid_of
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pool: AnyPool | None = None
        self._held: dict[int, GroupRecord] = {}

    def serve(self, pool: AnyPool) -> None:
        """Name the pool whose draws are run (the two know each other)."""
        self._pool = pool

    def start(self, draw: int) -> None:
        """Begin a draw. Its prompt is chosen here, since the choice may depend on when it is admitted."""
        run = self._run(draw, self._item_of(draw))
        task = asyncio.get_running_loop().create_task(run, name=f"draw-{draw}")
        self._tasks[draw] = task
        task.add_done_callback(lambda _: self._tasks.pop(draw, None))

    def give_up(self, draw: int, dropped: Dropped) -> None:
        """End a draw that is under way."""
        self._tasks[draw].cancel()
        assert self._pool is not None
        uid, step = self._uid_of(self._item_of(draw)), self._pool.step_of(draw)
        self._record.group(GroupRecord(step=step, draw=draw, uid=uid, drawn=None, dropped=dropped, nodes=()))

    def took(self, step: int, drawn: Sequence[Drawn]) -> None:
        """A step took these: record what could not be recorded before the step was known."""
        if self._pool is None or not self._pool.recorded_late:
            return
        for one in drawn:
            held = self._held.pop(one.draw, None)  # nothing is known of the nodes of an attempt before this one
            nodes, by = ((), "") if held is None else (held.nodes, held.by)
            self._record.group(
                GroupRecord(step=step, draw=one.draw, uid=one.uid, drawn=one, dropped=None, nodes=nodes, by=by)
            )

    async def close(self) -> None:
        """Cancel what is running and wait for it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, draw: int, item: int) -> None:
        """A draw, to its place in the pool. Whatever keeps it from there is handed to the driver, which raises it."""
        assert self._pool is not None
        try:
            record = await self._attempt(draw, item, self._pool)
            if self._pool.recorded_late and record.dropped is None:
                self._held[draw] = record
            else:
                self._record.group(record)
            if record.dropped is not None:
                if record.drawn is not None:
                    self._plane.free(tuple(record.drawn.refs.values()))
                self._pool.drop(draw, record.dropped)
            else:
                assert record.drawn is not None
                self._pool.finish(record.drawn)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:  # noqa: BLE001 - a draw that ends without a word would be waited for forever
            self._pool.fail(failure)

    async def _attempt(self, draw: int, item: int, pool: AnyPool) -> GroupRecord:
        made = await self._fleet.attempt(Draw(phase=self._phase, draw=draw, item=item, step=pool.admitted_for(draw)))
        if made.failure is not None:
            self._record.failed_nodes(made.nodes, draw)
            raise made.failure
        return GroupRecord(
            step=pool.step_of(draw),  # now: a draw may have moved to an earlier step while it ran
            draw=draw,
            uid=self._uid_of(item),
            drawn=made.drawn,
            dropped=made.dropped if made.drawn is None or pool.accepts(draw) else LEFT,
            nodes=made.nodes,
            by=made.by,
        )
