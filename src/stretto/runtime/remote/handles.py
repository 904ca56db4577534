"""How a driver reaches rollers and learners in other processes: the faces of ``Rolling`` and ``Learners`` over actors.

What an actor raises is raised here as it was, not as Ray wraps it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import ray
from ray.exceptions import RayTaskError

from stretto.plane.ray import RayPlane
from stretto.roles import EngineStatus, InFlight, MemoryLevel, Ref, Sampling
from stretto.runtime.learning import State, Waiting, take_state
from stretto.runtime.remote.asking import Answer, Asking
from stretto.runtime.roller import Attempted, Draw
from stretto.runtime.tried import Tried
from stretto.runtime.worker import Worker

__all__ = ["RemoteLearners", "RemoteRoller", "answer"]

P = ParamSpec("P")
T = TypeVar("T")
Actor = Any
"""A handle of Ray: its methods are known to Ray alone."""


async def answer(reply: "Awaitable[T]") -> T:
    """What an actor replies. Raises what it raised there."""
    try:
        return await reply
    except RayTaskError as error:
        raise _cause(error) from None


def _cause(error: RayTaskError) -> BaseException:
    """What was raised in an actor, with the traceback of there as a note."""
    cause = cast("BaseException | None", getattr(error, "cause", None))
    if not isinstance(cause, BaseException):
        return error
    cause.add_note(str(getattr(error, "traceback_str", "")))
    return cause


class RemoteRoller:
    """Implements ``Rolling`` by an actor of ``RollerActor``."""

    def __init__(self, name: str, plane: RayPlane, actor: Actor) -> None:
        self.name, self.actor, self._plane = name, actor, plane
        self._asking = Asking(actor.begin.remote, actor.give_up.remote, self._finished)

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
        await answer(self.actor.probe_invariance.remote())

    async def set_memory(self, level: MemoryLevel) -> None:
        """As ``Rolling`` says."""
        await answer(self.actor.set_memory.remote(level))

    async def status(self) -> EngineStatus:
        """As ``Rolling`` says."""
        return await answer(self.actor.status.remote())

    async def open_window(self, version: int, in_flight: InFlight, clear: Sequence[str]) -> None:
        """Open the window in which its weights are replaced."""
        await answer(self.actor.open_window.remote(version, in_flight, clear))

    async def close_window(self, failure: str = "") -> EngineStatus:
        """Close it; how the engine stands then."""
        return await answer(self.actor.close_window.remote(failure))

    async def _finished(self) -> list[Answer]:
        """What it has finished since the last time; the groups stay in the store."""
        reply, groups = self.actor.finished.options(num_returns=2).remote()
        answers = await answer(cast("Awaitable[list[Answer]]", reply))
        for one in answers:
            self._plane.place(_refs_of(one.value), groups)
        return answers


def _refs_of(value: object) -> Iterable[Ref]:
    """Where groups lie that an answer speaks of."""
    if isinstance(value, Attempted):
        return () if value.drawn is None else value.drawn.refs.values()
    return (ref for ref in value if isinstance(ref, Ref)) if isinstance(value, tuple) else ()


class RemoteLearners:
    """Implements ``Learners`` by an actor a rank."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self.actors = tuple(actors)

    async def call(self, function: Callable[Concatenate[Worker, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``Learners`` says. What several ranks raise is raised once: the lowest rank's."""
        replies = [actor.call.remote(function, args, kwargs) for actor in self.actors]
        found = await asyncio.gather(*(answer(reply) for reply in replies), return_exceptions=True)
        for result in found:
            if isinstance(result, BaseException):
                raise result
        return cast(T, found[0])

    async def state(self, waiting: Waiting, *, copy: bool) -> State:
        """As ``Learners`` says; every rank writes its own part, into a folder that all of them see."""
        memory = await self.call(take_state, waiting, copy=copy)

        def write(folder: Path) -> None:
            try:
                ray.get([actor.write_state.remote(folder) for actor in self.actors])
            except RayTaskError as error:
                raise _cause(error) from None

        return State(write=write, memory=cast("Mapping[str, Any]", memory))
