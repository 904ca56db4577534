"""Runs a coroutine on an event loop in a thread of its own, while the calling thread takes the signals.

So a run works from a script, from stdin and from a notebook (whose own loop is busy), and a first SIGINT or SIGTERM
asks it to stop; a second leaves at once.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from stretto.errors import ConfigError

__all__ = ["here", "host"]

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def host(main: Callable[[asyncio.Event], Awaitable[T]]) -> T:
    """The result of ``main(stop)``; ``stop`` is set by the first signal. What it raises is raised here."""
    outcome: list[T] = []
    failure: list[BaseException] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def target() -> None:
        asyncio.set_event_loop(loop)
        try:
            outcome.append(loop.run_until_complete(main(stop)))
        except BaseException as error:  # noqa: BLE001 - carried to the calling thread and raised there
            failure.append(error)
        finally:
            _end(loop)

    def ask_to_stop() -> None:
        with suppress(RuntimeError):  # the loop is closed: all is done, and there is nothing to stop
            loop.call_soon_threadsafe(stop.set)

    thread = threading.Thread(target=target, name="stretto-driver", daemon=True)
    with _signals(ask_to_stop):
        thread.start()
        while thread.is_alive():  # a bare join would keep Python from running the signal handlers
            thread.join(timeout=0.5)
    if failure:
        raise failure[0]
    return outcome[0]


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left on the loop and wait for it (``main`` itself, if an exit in a task broke the loop off)."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def here(main: Callable[[], Coroutine[object, object, T]]) -> T:
    """The result of ``main()``, run in the calling thread, which keeps its signals and its terminal: for debuggers.

    An interrupt while it waits cancels it, and comes through once all is closed. ConfigError where a loop runs already.
    """
    with suppress(RuntimeError):  # there is none
        asyncio.get_running_loop()
        raise ConfigError(
            "an event loop runs in this thread already, as in a notebook, and debugging needs the thread for itself. "
            "Run it as a script or from the command line."
        )
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(main())
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    loop.run_until_complete(task)
            raise
    finally:
        _end(loop)


@contextmanager
def _signals(ask_to_stop: Callable[[], object]) -> Iterator[None]:
    """First signal: ask to stop, and say so. Second: leave at once; children end when their pipe closes."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; whoever called us from elsewhere keeps theirs
        return
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            _show_cursor()
            os._exit(130)
        print("\nStopping: finishing what has begun, then saving. Once more to leave at once.", file=sys.stderr)
        ask_to_stop()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_cursor() -> None:
    """A live display hides the terminal's cursor, and does not get to show it again when the process leaves at once."""
    with suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h\n")
