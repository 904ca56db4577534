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
from stretto.waiting import in_thread

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
        cancelled: asyncio.CancelledError | None = None
        while not closing.done():  # a second cancellation must not leave anything open
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError as error:
                cancelled = error
        failures = closing.result()
        first = cause or cancelled
        if first is not None:
            for failure in failures:
                first.add_note(failure)
        elif failures:
            raise RunError("The run ended, but not everything closed in order: " + " ".join(failures))
        if cause is None and cancelled is not None:
            raise cancelled

    async def _close_all(self) -> list[str]:
        failures: list[str] = []
        while self._owned:
            owned = self._owned.pop()
            pids = tuple(owned.pids())
            failure = await _close(owned)
            if failure is None:
                continue  # its children are gone and reaped, and their ids may be others' by now
            failures.append(failure)
            for pid in pids:
                _kill(pid)
        return failures


async def _close(owned: _Owned) -> str | None:
    """Run a close; why it failed, if it did. One that is late is left behind, and whatever it raises is its own."""
    closing = asyncio.ensure_future(_call(owned))
    await asyncio.wait({closing}, timeout=owned.deadline_s)
    if not closing.done():
        closing.cancel()
        return f"{owned.name} did not close within {owned.deadline_s:g} s; its processes were killed."
    if closing.cancelled():
        return f"{owned.name} failed to close: it was cancelled."
    return closing.result()


async def _call(owned: _Owned) -> str | None:
    """Why a close failed, if it did. A synchronous one goes to a thread, so that its deadline holds."""
    try:
        if inspect.iscoroutinefunction(owned.close):
            await owned.close()
        else:
            result = await in_thread(owned.close, f"stretto-close {owned.name}")
            if inspect.isawaitable(result):
                await result
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - every close must run, after an exit too; the failure is reported
        return f"{owned.name} failed to close: {type(error).__name__}: {error}"
    return None


def _kill(pid: int) -> None:
    """Kill a child that outlived its close; one that is gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
