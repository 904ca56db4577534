"""The rollers of a run, as one: draws go to whichever has the least to do.

What comes of a draw does not depend on which roller made it (seeds are of the draw, and a native engine is
batch-invariant), so how draws are spread is a matter of speed alone.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from stretto.roles import MemoryLevel, Ref, Sampling
from stretto.runtime.roller import Attempted, Draw, Rolling
from stretto.runtime.tried import Tried

__all__ = ["Fleet"]


class Fleet:
    """Implements what ``Rolling`` does for draws and prompts, over several rollers."""

    def __init__(self, rollers: Sequence[Rolling]) -> None:
        assert rollers, "a run has one roller at least"
        self.rollers = tuple(rollers)
        self._under_way = [0] * len(self.rollers)

    async def attempt(self, draw: Draw) -> Attempted:
        """Make a draw, on the roller that has the fewest under way."""
        async with self._least_loaded() as roller:
            return await roller.attempt(draw)

    async def try_one(self, key: tuple[str, str], index: int, step: int, steps: int | None) -> Tried | None:
        """Attempts at a prompt of an evaluation set."""
        async with self._least_loaded() as roller:
            return await roller.try_one(key, index, step, steps)

    async def probe(self, phase: int, items: Sequence[int], sampling: Sampling) -> list[tuple[Ref, ...]]:
        """A few samples of each roller."""
        return list(await asyncio.gather(*(roller.probe(phase, items, sampling) for roller in self.rollers)))

    async def probe_invariance(self) -> None:
        """Check every engine."""
        await asyncio.gather(*(roller.probe_invariance() for roller in self.rollers))

    async def set_memory(self, level: MemoryLevel) -> None:
        """Release the memory of every engine, or take it back."""
        await asyncio.gather(*(roller.set_memory(level) for roller in self.rollers))

    @asynccontextmanager
    async def _least_loaded(self) -> AsyncGenerator[Rolling]:
        place = min(range(len(self.rollers)), key=self._under_way.__getitem__)
        self._under_way[place] += 1
        try:
            yield self.rollers[place]
        finally:
            self._under_way[place] -= 1
