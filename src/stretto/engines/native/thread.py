"""The engine thread: takes commands from an event loop, turns the scheduler, never dies of an exception.

What is no exception (an exit that is raised in it) ends it, and then whoever waits for it is told.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import torch

from stretto.engines.native.scheduler import Scheduler
from stretto.errors import EngineError
from stretto.waiting import in_thread

__all__ = ["EngineThread"]

T = TypeVar("T")


class EngineThread:
    """Owns one thread, in which all torch work of the engine happens. Commands run in the order they were posted; the
    first begins it."""

    def __init__(self, scheduler: Scheduler, *, threads: int) -> None:
        self._scheduler = scheduler
        self._threads = threads
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = False
        self._posting = threading.Lock()  # so that nothing is posted between the last command and the end
        self.closed = False
        self.end = "was closed"
        """What became of the engine once ``closed``."""
        self._thread = threading.Thread(target=self._run, name="stretto-native-engine", daemon=True)
        self._begun = False

    def post(self, command: Callable[[], None]) -> None:
        """Have ``command`` run in the thread. What it raises makes the engine unhealthy."""
        with self._posting:
            if not self.closed:
                self._put(command)

    async def ask(self, command: Callable[[], T]) -> T:
        """The result of ``command``, or what it raises."""
        return await self.answer(lambda future: future.set_result(command()))

    async def answer(self, command: "Callable[[Future[T]], None]") -> T:
        """What ``command`` sets its future to, then or later, or what it raises."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # so that an answer nobody waits for any more can still be set
        with self._posting:
            if self.closed:
                raise EngineError(f"The engine {self.end}. Make a new one.")
            self._put(lambda: _settle(future, command))
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Run what was posted, close the scheduler, join the thread. Idempotent."""
        with self._posting:
            if not self.closed:
                self._put(self._close)
                self.closed = True
        await in_thread(self._thread.join, "stretto-close engine")

    def _put(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        if not self._begun:
            self._begun = True
            self._thread.start()

    def _close(self) -> None:
        self._stop = True

    def _run(self) -> None:
        # The first torch call of a thread takes over a process-wide default: make it before setting our own count.
        torch.get_num_threads()
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            try:
                while not self._stop:
                    self._turn()
                self._scheduler.close()
            except BaseException as cause:  # noqa: BLE001 - nobody would learn that it is gone, and all would wait
                self._die(cause)
        self._scheduler.flush()

    def _die(self, cause: BaseException) -> None:
        """End every request, and answer what was asked, with ``cause``."""
        with self._posting:
            self.end, self.closed = f"lost its thread to {cause!r}", True
        self._scheduler.close(self.end, cause)
        while not self._commands.empty():
            self._commands.get()()

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
    except BaseException as cause:  # it ends the thread, and would end the asker's event loop
        future.set_exception(EngineError(f"The engine lost its thread to {cause!r}."))
        raise
