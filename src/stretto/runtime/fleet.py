"""The rollers of a run, as one: draws go to whichever has the least to do, and from one that is lost to the others.

    serving ── lost ──▶ being started again ── weights of now, or those of the next publication ──▶ serving

What comes of a draw does not depend on which roller made it (seeds are of the draw, and a native engine is
batch-invariant), so how draws are spread, and that one is made twice, is a matter of time alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from stretto.errors import WorkerLost
from stretto.roles import MemoryLevel, Ref, Sampling
from stretto.runtime.roller import Attempted, Draw, Rolling
from stretto.runtime.tried import Tried

__all__ = ["Fleet", "Revive"]

T = TypeVar("T")
Revive = Callable[[int, Rolling, WorkerLost], Awaitable[Rolling]]
"""Starts the roller at a place again. WorkerLost, or another RunError, if that is not to be."""
Renew = Callable[[Rolling], Awaitable[bool]]
"""Gives a roller the weights that the others hold; False if nobody has them any more."""


class Fleet:
    """Implements what ``Rolling`` does for draws and prompts, over several rollers.

    Without ``revive`` a roller that is lost is the end. With it, ``renew`` gives what was started again its weights.
    """

    def __init__(self, rollers: Sequence[Rolling], revive: Revive | None = None, renew: Renew | None = None) -> None:
        assert rollers, "a run has one roller at least"
        self._rollers: list[Rolling | None] = list(rollers)
        self._waiting: dict[int, Rolling] = {}
        self._under_way = [0] * len(rollers)
        self._revive, self._renew = revive, renew
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._reviving: set[asyncio.Task[None]] = set()

    @property
    def rollers(self) -> tuple[Rolling, ...]:
        """Those that new weights go to: all that are up."""
        return (*(roller for roller in self._rollers if roller is not None), *self._waiting.values())

    def published(self) -> None:
        """All of ``rollers`` hold the newest weights: those that waited for that serve again."""
        for place, roller in self._waiting.items():
            self._rollers[place] = roller
        self._waiting = {}
        self._changed.set()

    async def attempt(self, draw: Draw) -> Attempted:
        """Make a draw, on the roller that has the fewest under way."""
        return await self._by_one(lambda roller: roller.attempt(draw))

    async def try_one(self, key: tuple[str, str], index: int, step: int, steps: int | None) -> Tried | None:
        """Attempts at a prompt of an evaluation set."""
        return await self._by_one(lambda roller: roller.try_one(key, index, step, steps))

    async def probe(self, phase: int, items: Sequence[int], sampling: Sampling) -> list[tuple[Ref, ...]]:
        """A few samples of each roller."""
        return list(await asyncio.gather(*(roller.probe(phase, items, sampling) for roller in self.rollers)))

    async def probe_invariance(self) -> None:
        """Check every engine."""
        await asyncio.gather(*(roller.probe_invariance() for roller in self.rollers))

    async def set_memory(self, level: MemoryLevel) -> None:
        """Release the memory of every engine, or take it back."""
        await asyncio.gather(*(roller.set_memory(level) for roller in self.rollers))

    def lost(self, roller: Rolling, why: WorkerLost) -> None:
        """A roller is lost. Whoever notices says so; it is started again once."""
        if roller in self._waiting.values():
            place = next(place for place, one in self._waiting.items() if one is roller)
            del self._waiting[place]
        elif roller in self._rollers:
            place = self._rollers.index(roller)
            self._rollers[place] = None
        else:
            return
        task = asyncio.get_running_loop().create_task(self._bring_back(place, roller, why), name="reviving")
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    async def close(self) -> None:
        """Start nothing again."""
        for task in list(self._reviving):
            task.cancel()
        await asyncio.gather(*self._reviving, return_exceptions=True)

    async def _by_one(self, call: Callable[[Rolling], Awaitable[T]]) -> T:
        while True:
            place, roller = await self._least_loaded()
            self._under_way[place] += 1
            try:
                return await call(roller)
            except WorkerLost as why:
                self.lost(roller, why)
            finally:
                self._under_way[place] -= 1

    async def _least_loaded(self) -> tuple[int, Rolling]:
        while True:
            if self._failure is not None:
                raise self._failure
            serving = [(place, roller) for place, roller in enumerate(self._rollers) if roller is not None]
            if serving:
                return min(serving, key=lambda one: self._under_way[one[0]])
            self._changed.clear()
            await self._changed.wait()

    async def _bring_back(self, place: int, roller: Rolling, why: WorkerLost) -> None:
        """Start it again. If nobody serves and nobody knows the weights, draws under way would wait for ever for a
        publication that waits for them: then it is the end."""
        try:
            if self._revive is None or self._renew is None:
                raise why
            fresh = await self._revive(place, roller, why)
            if await self._renew(fresh):
                self._rollers[place] = fresh
            elif any(one is not None for one in self._rollers):
                self._waiting[place] = fresh
            else:
                raise WorkerLost(f"every roller was lost while the weights changed. The first: {why}") from why
        except asyncio.CancelledError:
            raise
        except Exception as failure:  # noqa: BLE001 - it belongs to whoever waits for a roller
            self._failure = failure
        self._changed.set()
