"""Coroutines side by side: all of their results, or the first failure and nothing left running."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TypeVar

__all__ = ["together"]

T = TypeVar("T")


async def together(work: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """The results in order. The first failure cancels the rest, waits for them and is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
