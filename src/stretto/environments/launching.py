"""The parent's side of a process that runs user code: started fresh, killed with its group, told apart when it ends.

Owns one child and everything opened for it; not what is said over the link (``processes.py``, ``sessions.py``) or what
the child does (``worker.py``, ``player.py``).

Started fresh means ``sys.executable`` on an import line, never a fork and never the user's script again, so that
user code works from a script without a ``__main__`` guard, from standard input and from a notebook.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from stretto.environments.serving import HEADER
from stretto.errors import ConfigError, RewardError

__all__ = ["NAMELESS", "START_S", "Child", "Launch", "receive_message", "send_message"]

START_S = 120.0
"""Seconds a process may take to start and import what the user's code needs."""
_LEAVE_S = 1.0
"""Seconds an idle process has to end by itself on ``leave``."""
_REAP_S = 10.0
"""Seconds to wait for a killed process; only the kernel can make it late."""

NAMELESS = "<dynamic-code>"
"""What cloudpickle writes in place of the file of code that travels by value."""

# -P keeps a file of the working directory from standing in for a standard module before the path is set.
_COMMAND = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main(int(sys.argv[2]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every process of one reward or environment starts with: it as bytes, the import path, the working directory.

    ``what`` is the word and the recipe's section for it; ``module`` has the child's ``main``. ``file`` is where it was
    written, for messages: code that travels by value forgets it.
    """

    what: str
    module: str
    name: str
    file: str
    payload: bytes
    path: tuple[str, ...]
    folder: str

    @classmethod
    def of(
        cls,
        name: str,
        payload: object,
        *,
        what: str = "reward",
        module: str = "stretto.environments.worker",
        shown: object = None,
    ) -> "Launch":
        """A launch from here: this process's import path and working directory are handed on.

        ``payload`` is what the child gets with ``name``; ``shown`` the user's code in it, if it is not all of it.
        """
        try:
            pickled: bytes = cloudpickle.dumps((name, payload))  # pyright: ignore[reportUnknownMemberType]
        except Exception as error:
            # Pickling calls into whatever the code holds, which may raise anything.
            raise ConfigError(
                f"the {what} {name!r} cannot be sent to {_a(what)} process ({type(error).__name__}: {error}). Keep "
                f"locks, files and connections out of it (make them inside), or set {what}.workers=0."
            ) from error
        return cls(
            what=what,
            module=module,
            name=name,
            file=_file_of(payload if shown is None else shown),
            payload=pickled,
            path=tuple(map(str, sys.path)),
            folder=os.getcwd(),
        )


class Child:
    """One running child: its process, which leads a process group of its own, and the link to it."""

    def __init__(self, launch: Launch) -> None:
        """Start it. RewardError if the system cannot."""
        self._what = launch.what
        self.link, theirs = socket.socketpair()
        self.link.setblocking(False)
        try:
            self._process = _popen(launch, theirs.fileno())
        except OSError as error:
            self.link.close()
            raise RewardError(
                f"{_a(launch.what)} process cannot be started ({error}). Free memory or processes."
            ) from error
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id, which is its process group too."""
        return self._process.pid

    def abandon(self) -> None:
        """Kill it and its process group; whoever waits for its answer sees the link close, and is to ``kill`` it."""
        # Not reaped yet, so the id is still the child's; the group may be gone before the child is.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill it and its process group, reap it and close everything. Idempotent."""
        self.abandon()  # first: a child that sees the link close beside an answer nobody read would complain
        self.link.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        # What SIGKILL does not end within this time is stuck in the kernel; waiting longer would hang the run.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)

    async def leave(self) -> None:
        """Let it end by itself while it is idle, for a moment, then ``kill``."""
        with suppress(OSError, TimeoutError):
            self.link.shutdown(socket.SHUT_WR)
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.link, 1), _LEAVE_S)
        self.kill()

    @property
    def ending(self) -> str:
        """How it ended, after ``kill``."""
        code = self._process.returncode
        if code is not None and code < 0:
            name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
            hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
            return f"the {self._what} process died of {name}{hint}"
        return f"the {self._what} process ended with status {code}"


async def send_message(link: socket.socket, message: bytes) -> None:
    """Send one message from the parent's event loop."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(link, HEADER.pack(len(message)))
    await loop.sock_sendall(link, message)


async def receive_message(link: socket.socket) -> bytes:
    """The next message from the child; EOFError or ConnectionError when there is none to come."""
    return await _receive(link, HEADER.unpack(await _receive(link, HEADER.size))[0])


def _popen(launch: Launch, link_fd: int) -> subprocess.Popen[bytes]:
    command = _COMMAND.format(module=launch.module)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", command, json.dumps(launch.path), str(link_fd)],
        stdin=subprocess.PIPE,
        pass_fds=(link_fd,),
        cwd=launch.folder,
        # The hash seed makes the order of a set of strings the same in every process.
        env={"PYTHONHASHSEED": "0", **os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


async def _receive(link: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = await loop.sock_recv_into(link, view[got:])
        if count == 0:
            raise EOFError
        got += count
    return bytes(data)


def _file_of(user_code: object) -> str:
    while isinstance(user_code, partial):
        user_code = user_code.func
    for holder in (user_code, getattr(type(user_code), "__call__", None)):  # noqa: B004 - its code, not whether callable
        code = getattr(holder, "__code__", None)
        if isinstance(code, CodeType):
            return code.co_filename
    # A class has no code of its own; its methods have.
    for member in vars(user_code).values() if isinstance(user_code, type) else ():
        code = getattr(member, "__code__", None)
        if isinstance(code, CodeType):
            return code.co_filename
    return NAMELESS


def _a(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"
