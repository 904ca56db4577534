"""Ways to wait that something else may end: a request to stop, or a deadline that a thread does not keep.

A ``Lane`` is one thread that runs functions in order. It is a daemon: what never ends in it keeps neither an event loop
nor the process from ending, as a thread of ``concurrent.futures`` would.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from stretto.errors import Interrupted

__all__ = ["Lane", "in_thread", "unless_stopped"]

T = TypeVar("T")


async def unless_stopped(work: Coroutine[object, object, T], stop: asyncio.Event, told: str) -> T:
    """The result of ``work``. If ``stop`` is set first, it is cancelled and waited for, then Interrupted(``told``)."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Interrupted(told)
        return working.result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def in_thread(function: Callable[[], T], name: str) -> T:
    """The result of ``function``, run in a daemon thread of its own. Who stops waiting leaves it behind."""
    lane = Lane(name)
    try:
        return await asyncio.wrap_future(lane.submit(function))
    finally:
        lane.close()


class Lane:
    """One daemon thread, begun with the first function. ``submit`` and ``close`` are for one caller at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Run ``function`` after those before it; its future gets what it raises. Cancelled before, it never runs."""
        assert not self._closed, f"{self._name} is closed, so this would never run"
        future: Future[T] = Future()
        self._queue.put(lambda: _settle(future, function))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        """Let the thread end once it has run what was submitted; ``join`` waits for that."""
        self._closed = True
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # an idle thread holds nothing of what it did


def _settle(future: "Future[T]", function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - it belongs to who asked, an exit too
        future.set_exception(error)
    else:
        future.set_result(result)
