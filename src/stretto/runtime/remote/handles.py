"""How a driver reaches rollers and learners in other processes: ``Rolling`` and ``Learners`` over workers."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import ray
from ray.exceptions import RayActorError, RayTaskError

from stretto.errors import WorkerLost
from stretto.plane.ray import RayPlane
from stretto.roles import EngineStatus, InFlight, MemoryLevel, Ref, Sampling
from stretto.runtime.learning import State, Waiting, take_state
from stretto.runtime.remote.asking import Answer, Asking
from stretto.runtime.remote.workers import RemoteWorker, cause_of
from stretto.runtime.roller import Attempted, Draw
from stretto.runtime.tried import Tried
from stretto.runtime.worker import Worker

__all__ = ["RemoteLearners", "RemoteRoller"]

P = ParamSpec("P")
T = TypeVar("T")
GRACE_S = 10.0
"""How long ranks have to end a call that one of them has failed: they may wait for it in a collective, for ever."""


class RemoteRoller:
    """Implements ``Rolling`` by an actor of ``RollerActor``."""

    def __init__(self, worker: RemoteWorker, plane: RayPlane) -> None:
        self.worker, self._plane = worker, plane
        self._asking = Asking(worker.actor.begin.remote, worker.actor.give_up.remote, self._finished)

    async def attempt(self, draw: Draw) -> Attempted:
        """As ``Rolling`` says."""
        return await self._asking.ask("attempt", draw)

    async def try_one(self, key: tuple[str, str], index: int, step: int, steps: int | None) -> Tried | None:
        """As ``Rolling`` says."""
        return await self._asking.ask("try_one", key, index, step, steps)

    async def probe(self, phase: int, items: Sequence[int], sampling: Sampling) -> tuple[Ref, ...]:
        """As ``Rolling`` says."""
        return await self._asking.ask("probe", phase, items, sampling)

    async def probe_invariance(self) -> None:
        """As ``Rolling`` says."""
        await self.worker.call("probe_invariance")

    async def set_memory(self, level: MemoryLevel) -> None:
        """As ``Rolling`` says."""
        await self.worker.call("set_memory", level)

    async def status(self) -> EngineStatus:
        """As ``Rolling`` says."""
        return await self.worker.call("status")

    async def open_window(self, version: int, in_flight: InFlight, clear: Sequence[str]) -> None:
        """Open the window in which its weights are replaced."""
        await self.worker.call("open_window", version, in_flight, clear)

    async def close_window(self, failure: str = "") -> EngineStatus:
        """Close it; how the engine stands then."""
        return await self.worker.call("close_window", failure)

    async def _finished(self) -> list[Answer]:
        """What it has finished since the last time; the groups stay in the store."""
        reply, groups = self.worker.actor.finished.options(num_returns=2).remote()
        answers = cast("list[Answer]", await self.worker.answer(reply))
        for one in answers:
            self._plane.place(_refs_of(one.value), groups)
        return answers


def _refs_of(value: object) -> Iterable[Ref]:
    """Where groups lie that an answer speaks of."""
    if isinstance(value, Attempted):
        return () if value.drawn is None else value.drawn.refs.values()
    return (ref for ref in value if isinstance(ref, Ref)) if isinstance(value, tuple) else ()


class RemoteLearners:
    """Implements ``Learners`` by a worker a rank."""

    def __init__(self, workers: Sequence[RemoteWorker]) -> None:
        self.workers = tuple(workers)

    async def call(self, function: Callable[Concatenate[Worker, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``Learners`` says. What several ranks raise is raised once: the lowest rank's. If a rank is lost, nobody
        waits for the others: they may wait for it."""
        asked = ray.put((function, args, kwargs))  # written once, however many ranks read it
        calls = [asyncio.ensure_future(worker.call("call", asked)) for worker in self.workers]
        try:
            done, left = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if left and not any(isinstance(call.exception(), WorkerLost) for call in done):
                await asyncio.wait(left, timeout=GRACE_S)
            failures = [call.exception() for call in calls if call.done() and call.exception() is not None]
            for failure in sorted(failures, key=lambda f: not isinstance(f, WorkerLost)):
                assert failure is not None
                raise failure
            return cast(T, calls[0].result())
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def state(self, waiting: Waiting, *, copy: bool) -> State:
        """As ``Learners`` says; every rank writes its own part, into a folder that all of them see."""
        memory = await self.call(take_state, waiting, copy=copy)

        def write(folder: Path) -> None:
            for worker, reply in [(worker, worker.actor.write_state.remote(folder)) for worker in self.workers]:
                try:
                    ray.get(reply)
                except RayTaskError as error:
                    raise cause_of(error) from None
                except RayActorError as error:
                    raise worker.gone(error) from None

        return State(write=write, memory=cast("Mapping[str, Any]", memory))
