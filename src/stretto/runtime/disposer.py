"""Owns the life of everything a run opens. Each resource is registered at the line that opens it; on every way out
(return, exception, cancellation) all are closed in reverse order, each within its deadline, then by killing its pids.

It does not decide *when* a run ends: the driver and the signals do.
"""

import asyncio
import inspect
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from stretto.errors import RunError

__all__ = ["Disposer"]

T = TypeVar("T")
Close = Callable[[], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owned:
    name: str
    close: Close
    deadline_s: float
    pids: Callable[[], Sequence[int]]


class Disposer:
    """An async context that closes what it owns, newest first.

    Every close runs, whatever the others do. A close that outlives its deadline is abandoned and its pids are killed.
    Failures to close are raised together once all is closed; if an exception is already on its way, they are attached
    to it as notes, so that the first cause stays on top.
    """

    def __init__(self) -> None:
        self._owned: list[_Owned] = []

    def own(
        self,
        name: str,
        resource: T,
        close: Close,
        *,
        deadline_s: float = 10.0,
        pids: Callable[[], Sequence[int]] = tuple,
    ) -> T:
        """Take ``resource`` and give it back; ``close`` (sync or async) will be called exactly once."""
        self._owned.append(_Owned(name=name, close=close, deadline_s=deadline_s, pids=pids))
        return resource

    async def __aenter__(self) -> "Disposer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = asyncio.ensure_future(self._close_all())
        while not closing.done():  # a second cancellation must not leave anything open
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                if closing.cancelled():
                    raise
        failures = closing.result()
        if not failures:
            return
        if cause is not None:
            for failure in failures:
                cause.add_note(failure)
        else:
            raise RunError("The run ended, but not everything closed in order: " + " ".join(failures))

    async def _close_all(self) -> list[str]:
        failures: list[str] = []
        while self._owned:
            owned = self._owned.pop()
            pids = tuple(owned.pids())
            try:
                await asyncio.wait_for(_call(owned.close), owned.deadline_s)
            except TimeoutError:
                failures.append(f"{owned.name} did not close within {owned.deadline_s:g} s; its processes were killed.")
            except Exception as error:  # noqa: BLE001 - every close must run; the failure is reported below
                failures.append(f"{owned.name} failed to close: {type(error).__name__}: {error}")
            else:
                continue  # its children are gone and reaped, and their ids may be others' by now
            for pid in pids:
                _kill(pid)
        return failures


async def _call(close: Close) -> None:
    """Run a close; a synchronous one goes to a thread, so that its deadline holds."""
    if inspect.iscoroutinefunction(close):
        await close()
        return
    result = await asyncio.to_thread(close)
    if inspect.isawaitable(result):
        await result


def _kill(pid: int) -> None:
    """Kill a child that outlived its close; one that is gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
