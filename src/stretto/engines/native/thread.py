"""The engine thread: takes commands from an event loop, turns the scheduler, never dies of an exception."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import torch

from stretto.engines.native.scheduler import Scheduler
from stretto.errors import EngineError

__all__ = ["EngineThread"]

T = TypeVar("T")


class EngineThread:
    """Owns one thread, in which all torch work of the engine happens. Commands run in the order they were posted."""

    def __init__(self, scheduler: Scheduler, *, threads: int) -> None:
        self._scheduler = scheduler
        self._threads = threads
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = False
        self.closed = False
        self._thread = threading.Thread(target=self._run, name="stretto-native-engine", daemon=True)
        self._thread.start()

    def post(self, command: Callable[[], None]) -> None:
        """Have ``command`` run in the thread. What it raises makes the engine unhealthy."""
        if not self.closed:
            self._commands.put(command)

    async def ask(self, command: Callable[[], T]) -> T:
        """The result of ``command``, or what it raises."""
        return await self.answer(lambda future: future.set_result(command()))

    async def answer(self, command: "Callable[[Future[T]], None]") -> T:
        """What ``command`` sets its future to, then or later, or what it raises."""
        if self.closed:
            raise EngineError("The engine was closed. Make a new one.")
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # so that an answer nobody waits for any more can still be set
        self._commands.put(lambda: _settle(future, command))
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Run what was posted, close the scheduler, join the thread. Idempotent."""
        if not self.closed:
            self._commands.put(self._close)
            self.closed = True
        await asyncio.to_thread(self._thread.join)

    def _close(self) -> None:
        self._stop = True

    def _run(self) -> None:
        # The first torch call of a thread takes over a process-wide default: make it before setting our own count.
        torch.get_num_threads()
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while not self._stop:
                self._turn()
            self._scheduler.close()
        self._scheduler.flush()

    def _turn(self) -> None:
        """Failure policy of the engine: whatever breaks in here reaches every pending request, and nobody hangs."""
        try:
            if not self._scheduler.has_work:
                self._commands.get()()
            while not self._commands.empty():
                self._commands.get()()
            self._scheduler.flush()
            if self._scheduler.has_work and not self._stop:
                self._scheduler.step()
        except Exception as cause:  # noqa: BLE001
            self._scheduler.fail(cause)
        self._scheduler.flush()


def _settle(future: "Future[T]", command: "Callable[[Future[T]], None]") -> None:
    """Failure policy of a question: what it raises goes to who asked."""
    try:
        command(future)
    except Exception as cause:  # noqa: BLE001
        future.set_exception(cause)
