"""What runs in a roller's process: a ``Roller`` with its own engine, reward processes and rollout file.

Everything it opens is owned by a Disposer of its own, and closed when the driver says so or its process is told to end.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from stretto.config.backends import FakeBackendConfig
from stretto.plane.ray import Gathered, GatheringPlane
from stretto.roles import EngineStatus, InFlight, MemoryLevel, WeightSink
from stretto.runtime.build import Job
from stretto.runtime.disposer import Disposer
from stretto.runtime.opening import open_engine, open_judging, roller_of
from stretto.runtime.remote.asking import Answer, Answering, Asked
from stretto.runtime.remote.workers import Doing
from stretto.runtime.roller import Roller
from stretto.store.worker_file import WorkerRollouts
from stretto.types import Group
from stretto.waiting import Lane
from stretto.weights.buckets import Bucket, Bytes, write_bucket

__all__ = ["RollerActor"]


class RollerActor:
    """One roller. ``place``: the run's folder and number of the attempt, for the groups it makes; None:
    nothing is recorded."""

    def __init__(self, job: Job, name: str, place: tuple[Path, int] | None) -> None:
        self._job, self._name, self._place = job, name, place
        self._plane = GatheringPlane()
        self._answering = Answering(self._answer)
        self._disposer = Disposer()
        self._roller: Roller | None = None
        self._lane: Lane | None = None
        self._record: WorkerRollouts | None = None
        self._window: tuple[AbstractAsyncContextManager[WeightSink], WeightSink] | None = None

    async def open(self) -> None:
        """Start reward processes and engine. What fails is raised, and what was opened before it is closed."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def begin(self, asked: Sequence[Asked]) -> None:
        """Begin to make draws (``attempt``), to try prompts (``try_one``) and to ``probe``."""
        self._answering.begin(asked)

    async def give_up(self, numbers: Sequence[int]) -> None:
        """Nobody waits for these any more."""
        self._answering.give_up(numbers)

    async def finished(self) -> tuple[list[Answer], Gathered | None]:
        """What came of them since the last time, and the groups of all of it: an object of its own."""
        done = await self._answering.finished()
        return done, self._plane.gathered()

    async def probe_invariance(self) -> None:
        """As ``Rolling`` says."""
        await self._ready.probe_invariance()

    async def set_memory(self, level: MemoryLevel) -> None:
        """As ``Rolling`` says."""
        await self._ready.set_memory(level)

    async def status(self) -> EngineStatus:
        """As ``Rolling`` says."""
        return await self._ready.status()

    async def open_window(self, version: int, in_flight: InFlight, clear: Sequence[str]) -> None:
        """Open the window in which weights are replaced, and clear what matches ``clear``."""
        assert self._window is None, "a window is open"
        manager = self._ready.engine.update_weights(version, in_flight=in_flight)
        sink = await manager.__aenter__()
        self._window = manager, sink
        if clear:
            await self._on_lane(lambda: sink.clear(clear))

    async def take(self, bucket: Bucket, data: Bytes) -> None:
        """Write a bucket of weights into the engine. EngineError if its bytes are not those that were sent."""
        assert self._window is not None, "no window is open"
        sink = self._window[1]
        await self._on_lane(lambda: write_bucket(bucket, data, sink))

    async def close_window(self, failure: str = "") -> EngineStatus:
        """Close the window, on a failure so that the engine refuses requests; how the engine stands then."""
        assert self._window is not None, "no window is open"
        (manager, _), self._window = self._window, None
        if failure:
            error = RuntimeError(failure)
            try:
                await manager.__aexit__(RuntimeError, error, None)
            except RuntimeError as again:
                if again is not error:
                    raise
        else:
            await manager.__aexit__(None, None, None)
        return await self._ready.status()

    async def doing(self) -> Doing:
        """That it is there, and how much is under way."""
        count = self._answering.num_open
        return Doing(what=f"{count} draws or prompts" if count else "", pid=os.getpid())

    async def sync_record(self) -> None:
        """Wait until every group it has recorded is on disk."""
        if self._record is not None:
            self._record.sync()

    async def close(self) -> None:
        """Close everything. Idempotent."""
        await self._disposer.__aexit__(None, None, None)

    async def _answer(self, what: str, args: tuple[Any, ...]) -> object:
        match what:
            case "attempt":
                return await self._ready.attempt(*args)
            case "try_one":
                return await self._ready.try_one(*args)
            case _:
                assert what == "probe", what
                return await self._ready.probe(*args)

    @property
    def _ready(self) -> Roller:
        assert self._roller is not None, "open the roller first"
        return self._roller

    async def _open(self) -> None:
        disposer = self._disposer
        disposer.own("what is under way", self._answering, self._answering.close)
        judging = await open_judging(self._job, disposer)
        self._lane = Lane("stretto-weights")
        disposer.own("the thread of weights", self._lane, self._lane.close)
        if not isinstance(self._job.recipe.backend, FakeBackendConfig):
            from stretto.backends.torch.backend import set_threads  # loads torch

            await self._on_lane(lambda: set_threads(1))
        engine = open_engine(self._job)
        disposer.own("the engine", engine, engine.close)
        if self._place is not None:
            self._record = WorkerRollouts(*self._place, self._name)
            disposer.own("the rollout files", self._record, self._record.close)
        keep = None if self._record is None else self._keep
        self._roller = roller_of(self._job, judging, engine, self._plane, keep=keep, name=self._name)

    async def _on_lane(self, function: Callable[[], None]) -> None:
        """Run it where weights are written: on a thread whose number of intra-op threads is set."""
        assert self._lane is not None
        await asyncio.wrap_future(self._lane.submit(function))

    def _keep(self, phase: str, groups: Mapping[str, Group], why: str) -> None:
        assert self._record is not None
        for group in groups.values():
            self._record.write(phase, group, why)
