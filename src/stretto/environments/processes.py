"""A reward process as its parent sees it: started fresh, asked about one group at a time, killed when it is late.

Owns one child and everything opened for it. It does not own which process judges what (``judge.py``) or what the
child does (``worker.py``).

Started fresh means ``sys.executable`` on an import line, never a fork and never the user's script again, so that
rewards work from a script without a ``__main__`` guard, from standard input and from a notebook.
"""

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from stretto.environments.rewards import Fault, Reward, Scores
from stretto.environments.worker import HEADER, decode_answer
from stretto.errors import ConfigError, RewardError
from stretto.types import Group

__all__ = ["Launch", "RewardProcess"]

_START_S = 120.0
"""Seconds a process may take to start and import what the reward needs."""
_LEAVE_S = 1.0
"""Seconds an idle process has to end by itself on ``close``."""
_REAP_S = 10.0
"""Seconds to wait for a killed process; only the kernel can make it late."""

_NAMELESS = "<dynamic-code>"
"""What cloudpickle writes in place of the file of code that travels by value."""

# -P keeps a file of the working directory from standing in for a standard module before the path is set.
_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from stretto.environments.worker import main; main(int(sys.argv[2]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every process of one reward starts with: the reward as bytes, the import path, the working directory.

    ``file`` is where the reward was written, for messages: code that travels by value forgets it.
    """

    name: str
    file: str
    reward: bytes
    path: tuple[str, ...]
    folder: str

    @classmethod
    def of(cls, name: str, reward: Reward) -> "Launch":
        """A launch from here: this process's import path and working directory are handed on."""
        try:
            pickled: bytes = cloudpickle.dumps((name, reward))  # pyright: ignore[reportUnknownMemberType]
        except Exception as error:
            # Pickling calls into whatever the reward holds, which may raise anything.
            raise ConfigError(
                f"the reward {name!r} cannot be sent to a reward process ({type(error).__name__}: {error}). Keep "
                "locks, files and connections out of it (make them inside), or set reward.workers=0."
            ) from error
        return cls(name=name, file=_file_of(reward), reward=pickled, path=tuple(map(str, sys.path)), folder=os.getcwd())


class RewardProcess:
    """One child process. Used by one task at a time, on one event loop.

    After ``ask`` reports a timeout or a death, and after ``kill``, there is no process until the next ``start``.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._late = False

    @property
    def pid(self) -> int | None:
        """The child's process id, which is its process group too; None without a child."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the child and wait until it holds the reward. Raises ConfigError with the child's reason."""
        assert self._process is None
        self._link, theirs = socket.socketpair()
        self._link.setblocking(False)
        try:
            self._process = self._popen(theirs.fileno())
        except OSError as error:
            self.kill()
            raise RewardError(f"a reward process cannot be started ({error}). Free memory or processes.") from error
        finally:
            theirs.close()
        answer = await self._exchange(self._launch.reward, _START_S)
        if isinstance(answer, Fault):
            self.kill()
            raise ConfigError(
                f"the reward {self._launch.name!r} cannot be loaded in a reward process ({answer.cause}). Its module "
                "must be importable by name there, or be the script or notebook itself."
            )

    def _popen(self, link_fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND, json.dumps(self._launch.path), str(link_fd)],
            stdin=subprocess.PIPE,
            pass_fds=(link_fd,),
            cwd=self._launch.folder,
            # The hash seed makes the order of a set of strings the same in every process.
            env={"PYTHONHASHSEED": "0", **os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    async def ask(self, group: Group, timeout_s: float) -> list[Scores] | Fault:
        """The scores of ``group`` within ``timeout_s``, or why there are none. Cancelling kills the child."""
        answer = await self._exchange(pickle.dumps(group, protocol=pickle.HIGHEST_PROTOCOL), timeout_s)
        if not isinstance(answer, Fault):
            return answer
        named = (told.replace(_NAMELESS, self._launch.file) for told in (answer.cause, answer.traceback))
        return replace(answer, cause=next(named), traceback=next(named))

    def kill(self) -> None:
        """Kill the child and its process group, and forget it. Does nothing without one."""
        process, link = self._process, self._link
        self._process = self._link = None
        if link is not None:
            link.close()
        if process is None:
            return
        _kill_group(process)
        assert process.stdin is not None
        process.stdin.close()
        # What SIGKILL does not end within this time is stuck in the kernel; waiting longer would hang the run.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)

    def abandon(self) -> None:
        """Kill the child of a task that waits for it; the task is told so and forgets the child."""
        if self._process is not None:
            _kill_group(self._process)

    async def leave(self) -> None:
        """Let an idle child end by itself, for a moment, then ``kill``."""
        if self._link is not None:
            with suppress(OSError, TimeoutError):
                self._link.shutdown(socket.SHUT_WR)
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._link, 1), _LEAVE_S)
        self.kill()

    async def _exchange(self, message: bytes, timeout_s: float) -> list[Scores] | Fault:
        """Send one message and wait for its answer. The child is killed at the deadline, which ends the wait.

        Not a timeout on the wait itself: an answer that is there already counts, however late this loop comes to it.
        """
        process, link = self._process, self._link
        assert process is not None
        assert link is not None
        loop = asyncio.get_running_loop()
        self._late = False
        timer = loop.call_later(timeout_s, self._give_up)
        try:
            await loop.sock_sendall(link, HEADER.pack(len(message)))
            await loop.sock_sendall(link, message)
            size = HEADER.unpack(await _receive(loop, link, HEADER.size))[0]
            answer = decode_answer(await _receive(loop, link, size))
        except (EOFError, ConnectionError):
            self.kill()
            return Fault(cause=f"no answer within {timeout_s:g} s" if self._late else _how_it_ended(process), lost=True)
        except BaseException:
            self.kill()
            raise
        finally:
            timer.cancel()
        if self._late:
            self.kill()
        return answer

    def _give_up(self) -> None:
        self._late = True
        self.abandon()


async def _receive(loop: asyncio.AbstractEventLoop, link: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = await loop.sock_recv_into(link, view[got:])
        if count == 0:
            raise EOFError
        got += count
    return bytes(data)


def _file_of(reward: Reward) -> str:
    while isinstance(reward, partial):
        reward = reward.func
    for holder in (reward, getattr(type(reward), "__call__", None)):  # noqa: B004 - its code, not whether it is callable
        code = getattr(holder, "__code__", None)
        if isinstance(code, CodeType):
            return code.co_filename
    return _NAMELESS


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Not reaped yet, so the id is still the child's; the group may be gone before the child is.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
        return f"the reward process died of {name}{hint}"
    return f"the reward process ended with status {code}"
