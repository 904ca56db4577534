"""The child's side of a process that runs user code: its link to the parent, and that it never outlives it.

Owns framing, standard streams and the tie to the parent; not what is said over the link (``worker.py``, ``player.py``).
Messages are an 8-byte little-endian length and that many bytes.

The process lives no longer than its parent: its standard input is a pipe whose other end the parent holds, and when
it closes, however the parent ended, the kernel (Linux) or a watching thread kills this process and its children,
whatever the user's code is doing.
"""

import fcntl
import io
import os
import select
import signal
import socket
import struct
import sys
import threading

__all__ = ["HEADER", "open_link", "receive", "send"]

HEADER = struct.Struct("<Q")
"""The length that goes before every message."""


def open_link(link_fd: int) -> socket.socket:
    """Settle this process as a child that serves over ``link_fd``, and give the link; close it at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to decide about.
    _die_with_parent(os.getppid())
    _give_up_standard_streams()
    link = socket.socket(fileno=link_fd)
    link.set_inheritable(False)
    return link


def receive(link: socket.socket) -> bytes | None:
    """The next message, or None when the other end has closed."""
    header = _receive_exactly(link, HEADER.size)
    return None if header is None else _receive_exactly(link, HEADER.unpack(header)[0])


def send(link: socket.socket, message: bytes) -> None:
    """Send one message."""
    link.sendall(HEADER.pack(len(message)) + message)


def _receive_exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        try:
            count = link.recv_into(view[got:])
        except ConnectionResetError:  # the parent is gone, and an answer it had not read with it
            return None
        if count == 0:
            return None
        got += count
    return bytes(data)


def _give_up_standard_streams() -> None:
    """What user code prints goes to standard error; it has nothing to read."""
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
