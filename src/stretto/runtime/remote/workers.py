"""A worker in a process of its own, as a driver knows it: a name, an actor, and whether it is there.

What an actor raises is raised here as it was, not as Ray wraps it; that it is gone is WorkerLost, with the reason.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from stretto.errors import WorkerLost

__all__ = ["Doing", "RemoteWorker", "Watch", "cause_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What a worker does, in words (empty: nothing), and its process."""

    what: str
    pid: int


class RemoteWorker:
    """``host``: where it runs. ``lost``: why it is gone, in words; empty while it is there."""

    def __init__(self, name: str, actor: Any, host: str = "this machine") -> None:
        self.name, self.actor, self.host = name, actor, host
        self.pid = 0
        self.lost = ""
        self.doing: Doing | None = None
        self.heard_s = time.monotonic()

    async def call(self, method: str, *args: Any) -> Any:
        """What ``method`` of the actor gives."""
        return await self.answer(getattr(self.actor, method).remote(*args))

    async def answer(self, reply: Any) -> Any:
        """What the actor replies, or raised."""
        try:
            return await reply
        except RayTaskError as error:
            raise cause_of(error) from None
        except RayActorError as error:
            raise self.gone(error) from None

    def gone(self, error: RayActorError) -> WorkerLost:
        """The error that says that it is gone, and why."""
        if not self.lost:
            self.lost = f"it died ({_brief(error)})"
        where = f" in {self.doing.what}" if self.doing is not None and self.doing.what else ""
        return WorkerLost(f"{self.name} (process {self.pid} on {self.host}) was lost{where}: {self.lost}")

    def end(self, why: str) -> None:
        """Kill it; who waits for it hears ``why``."""
        self.lost = self.lost or why
        ray.kill(self.actor)

    async def beat(self) -> None:
        """Ask whether it is there."""
        self.doing = cast(Doing, await self.call("doing"))
        self.pid, self.heard_s = self.doing.pid, time.monotonic()


class Watch:
    """Asks every worker of a list, which may grow, again and again what it does. One that does not answer for
    ``stall_s`` is killed, so that whoever waits for it hears of it."""

    def __init__(self, workers: Sequence[RemoteWorker], heartbeat_s: float, stall_s: float) -> None:
        self._workers, self._heartbeat_s, self._stall_s = workers, heartbeat_s, stall_s
        self._asked: dict[RemoteWorker, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        now = time.monotonic()
        for worker in self._workers:
            worker.heard_s = now
        self._task = asyncio.get_running_loop().create_task(self._run(), name="watch")

    async def close(self) -> None:
        """Ask no more."""
        tasks = [task for task in (self._task, *self._asked.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            for worker in [worker for worker in self._workers if not worker.lost]:
                if worker not in self._asked or self._asked[worker].done():
                    self._asked[worker] = asyncio.ensure_future(_quietly(worker))
                silent = time.monotonic() - worker.heard_s
                if silent > self._stall_s:
                    worker.end(f"it has not answered for {silent:.0f} s (cluster.stall_s), and was ended")
            await asyncio.sleep(self._heartbeat_s)


async def _quietly(worker: RemoteWorker) -> None:
    """A beat; that the worker is gone is told to whoever waits for something it does."""
    try:
        await worker.beat()
    except WorkerLost:
        return


def cause_of(error: RayTaskError) -> BaseException:
    """What was raised in an actor, with the traceback of there as a note."""
    cause = cast("BaseException | None", getattr(error, "cause", None))
    if not isinstance(cause, BaseException):
        return error
    cause.add_note(str(getattr(error, "traceback_str", "")))
    return cause


def _brief(error: RayActorError) -> str:
    if isinstance(error, ActorUnavailableError):
        return "it cannot be reached"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "reason" in line.lower() or "killed" in line.lower()), "")
    return reason or ("its process ended" if isinstance(error, ActorDiedError) else type(error).__name__)
