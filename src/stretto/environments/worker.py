"""What runs in a reward process: read a group, call the reward, write its scores, until the parent is gone.

Owns the child's side of the protocol; ``processes.py`` owns the parent's. Both speak over one socket, in messages of
an 8-byte little-endian length and that many bytes. The first message in is the reward (cloudpickle), each later one a
group (pickle); every answer is JSON (``encode_answer``). The bytes come from the parent that started this process.

The process lives no longer than its parent: its standard input is a pipe whose other end the parent holds, and when
it closes, however the parent ended, the kernel (Linux) or a watching thread kills this process and its children,
whatever the reward is doing.
"""

import asyncio
import fcntl
import inspect
import io
import json
import os
import pickle
import random
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from stretto.environments.rewards import Fault, Reward, Scores, call_reward, read_values, settle
from stretto.types import Group

__all__ = ["HEADER", "decode_answer", "encode_answer", "main"]

HEADER = struct.Struct("<Q")
"""The length that goes before every message."""


def encode_answer(answer: Sequence[Scores] | Fault) -> bytes:
    """An answer as JSON; floats keep their bits."""
    if isinstance(answer, Fault):
        body: object = {"cause": answer.cause, "sample": answer.sample, "traceback": answer.traceback}
    else:
        body = [dict(scores) for scores in answer]
    return json.dumps(body, allow_nan=False).encode()


def decode_answer(message: bytes) -> list[Scores] | Fault:
    """The answer that ``encode_answer`` wrote."""
    body: object = json.loads(message)
    if isinstance(body, dict):
        told = cast("Mapping[str, Any]", body)
        return Fault(cause=told["cause"], sample=told["sample"], traceback=told["traceback"])
    return cast("list[Scores]", body)


def main(answers_fd: int) -> None:
    """Serve over the socket ``answers_fd`` until its other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to decide about.
    _die_with_parent(os.getppid())
    _give_up_standard_streams()
    with socket.socket(fileno=answers_fd) as link:
        link.set_inheritable(False)
        first = _receive(link)
        if first is None:
            return
        try:
            name, reward = cast("tuple[str, Reward]", pickle.loads(first))
        except BaseException as error:  # noqa: BLE001 - it imports the user's modules; the parent tells
            _send(link, encode_answer(Fault(cause=f"{type(error).__name__}: {error}")))
            return
        _send(link, encode_answer([]))
        with asyncio.Runner() as runner:
            while (message := _receive(link)) is not None:
                _send(link, encode_answer(_judge(name, reward, cast("Group", pickle.loads(message)), runner)))


def _judge(name: str, reward: Reward, group: Group, runner: asyncio.Runner) -> list[Scores] | Fault:
    # A reward that draws random numbers gives the same ones in any worker, on any day.
    random.seed(group.draw)
    np.random.seed(group.draw % 2**32)
    values = call_reward(reward, group)
    if not isinstance(values, Fault) and any(inspect.isawaitable(value) for value in values):
        values = runner.run(settle(values, group))
    return values if isinstance(values, Fault) else read_values(name, values, group)


def _receive(link: socket.socket) -> bytes | None:
    """The next message, or None when the other end has closed."""
    header = _receive_exactly(link, HEADER.size)
    return None if header is None else _receive_exactly(link, HEADER.unpack(header)[0])


def _receive_exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = link.recv_into(view[got:])
        if count == 0:
            return None
        got += count
    return bytes(data)


def _send(link: socket.socket, message: bytes) -> None:
    link.sendall(HEADER.pack(len(message)) + message)


def _give_up_standard_streams() -> None:
    """What a reward prints goes to standard error; it has nothing to read."""
    os.dup2(2, 1)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True, errors="backslashreplace")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _die_with_parent(parent: int) -> None:
    """Tie this process, and the process group it leads, to the pipe on standard input and to its parent."""
    lifeline = os.dup(0)
    if sys.platform == "linux":
        # The kernel sends SIGIO, whose default is death, to the group when the pipe's other end closes. A thread
        # would need the interpreter, which a regular expression that never ends does not give back.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_watch, args=(lifeline, parent), name="lifeline", daemon=True).start()


def _watch(lifeline: int, parent: int) -> None:
    """For other systems, for a parent gone before the kernel was asked, and for a pipe that a fork holds open."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP)
    while not poll.poll(1000) and os.getppid() == parent:
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
