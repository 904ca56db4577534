"""An environment process as its parent sees it: it holds many episodes, which are asked at the same time.

Owns what is said to one child, and who is to blame when it is late or dies. It does not own how a child is started and
killed (``launching.py``), which process gets which episode (``episodes.py``) or what the child does (``player.py``).

A call's time runs from when the child says that it has begun, so that a call which waits behind others is not late.
When a call is late the child is killed: that call has failed, and so have all that had begun when a child dies by
itself. The other episodes of the child are ``Swept`` away through no fault of their own.
"""

import asyncio
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from stretto.environments.contract import Verb
from stretto.environments.faults import Fault
from stretto.environments.launching import NAMELESS, START_S, Child, Launch, receive_message, send_message
from stretto.errors import ConfigError
from stretto.types import Json

__all__ = ["SessionProcess", "Swept"]


@dataclass(frozen=True, slots=True)
class Swept:
    """The episode is gone because its process is, for the sake of another episode. ``why`` is how."""

    why: str


Answer: TypeAlias = "Json | Fault | Swept"


@dataclass(slots=True)
class _Call:
    answer: asyncio.Future[Answer]
    timeout_s: float
    begun: bool = False
    timer: asyncio.TimerHandle | None = None
    late: bool = False


class SessionProcess:
    """One child process at a time; a new one takes the place of one that died. Belongs to one event loop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._child: Child | None = None
        self._starting = asyncio.Lock()
        self._calls: dict[int, _Call] = {}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._next = 0
        self._homes: dict[int, Child] = {}

    @property
    def pid(self) -> int | None:
        """The child's process id, which is its process group too; None without a child."""
        return None if self._child is None else self._child.pid

    @property
    def num_episodes(self) -> int:
        """How many episodes it holds."""
        return len(self._homes)

    async def start(self) -> None:
        """Start the child, if there is none, and wait until it holds the environment. ConfigError with its reason."""
        async with self._starting:
            if self._child is not None:
                return
            self._child = child = Child(self._launch)
            self._outgoing = asyncio.Queue()
            self._tasks = (
                asyncio.create_task(self._write(child, self._outgoing)),
                asyncio.create_task(self._read(child)),
            )
            call = self._expect(0, START_S)
            self._begin(call)
            self._outgoing.put_nowait(self._launch.payload)
            answer = await call.answer
            if isinstance(answer, (Fault, Swept)):
                cause = answer.cause if isinstance(answer, Fault) else answer.why
                self.kill()
                raise ConfigError(
                    f"the environment {self._launch.name!r} cannot be loaded in an environment process ({cause}). Its "
                    "module must be importable by name there, or be the script or notebook itself."
                )

    async def call(self, episode: int, verb: Verb, argument: object, seed: int, timeout_s: float) -> Answer:
        """Ask an episode, which ``start`` makes. Cancelling leaves the child as it is; ``forget`` the episode then."""
        if verb == "start":
            await self.start()
            assert self._child is not None
            self._homes[episode] = self._child
        if self._child is None or self._homes.get(episode) is not self._child:
            return Swept("its process had ended")
        self._next += 1
        call = self._expect(self._next, timeout_s)
        message = (self._next, episode, verb, argument, seed)
        self._outgoing.put_nowait(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        return await call.answer

    def forget(self, episode: int) -> None:
        """Let an episode go, whether or not it still lives."""
        home = self._homes.pop(episode, None)
        if home is not None and home is self._child:
            self._outgoing.put_nowait(pickle.dumps(episode))

    def kill(self) -> None:
        """Kill the child and let go of its episodes; their calls are answered. Does nothing without one."""
        child, self._child = self._child, None
        for task in self._tasks:
            task.cancel()
        self._tasks = ()
        if child is not None:
            child.kill()
            self._settle(child.ending)

    async def leave(self) -> None:
        """Let an idle child end by itself, for a moment, then ``kill``."""
        if self._child is not None and not self._calls:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._child.leave()
        self.kill()

    def _expect(self, id: int, timeout_s: float) -> _Call:
        call = _Call(answer=asyncio.get_running_loop().create_future(), timeout_s=timeout_s)
        self._calls[id] = call
        return call

    def _begin(self, call: _Call) -> None:
        call.begun = True
        call.timer = asyncio.get_running_loop().call_later(call.timeout_s, self._give_up, call)

    def _give_up(self, call: _Call) -> None:
        call.late = True
        if self._child is not None:
            self._child.abandon()

    async def _write(self, child: Child, outgoing: asyncio.Queue[bytes]) -> None:
        try:
            while True:
                await send_message(child.link, await outgoing.get())
        except ConnectionError:
            return  # the reader meets the same end, and tells

    async def _read(self, child: Child) -> None:
        try:
            while True:
                self._take(json.loads(await receive_message(child.link)))
        except (EOFError, ConnectionError):
            if child is self._child:
                writer, _ = self._tasks
                writer.cancel()  # nobody would read what it waits for
                self._child, self._tasks = None, ()
                child.kill()
                self._settle(child.ending)

    def _take(self, body: Mapping[str, Any]) -> None:
        call = self._calls[body["id"]]
        if "begun" in body:
            self._begin(call)
            return
        del self._calls[body["id"]]
        if call.timer is not None:
            call.timer.cancel()
        if call.answer.done():
            return
        if "fault" in body:
            named = {key: told.replace(NAMELESS, self._launch.file) for key, told in body["fault"].items()}
            call.answer.set_result(Fault(cause=named["cause"], traceback=named["traceback"]))
        else:
            call.answer.set_result(cast("Json", body["value"]))

    def _settle(self, ending: str) -> None:
        """The child is gone: answer every call."""
        calls, self._calls = list(self._calls.values()), {}
        late = any(call.late for call in calls)
        for call in calls:
            if call.timer is not None:
                call.timer.cancel()
            if call.answer.done():
                continue
            if call.late:
                call.answer.set_result(Fault(cause=f"no answer within {call.timeout_s:g} s", lost=True))
            elif call.begun and not late:
                call.answer.set_result(Fault(cause=ending, lost=True))
            else:
                call.answer.set_result(Swept(ending))
