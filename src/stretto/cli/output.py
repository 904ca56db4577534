"""Standard output that may go away: who reads it has ended (``stretto train ... | head``), or its disk is full. What a
command does is not ended by that; a run's record has all that was to be shown."""

import errno
import io
import os
import sys
from typing import Any

__all__ = ["lasting_output"]


class _Lasting(io.FileIO):
    """A file descriptor whose writes go nowhere once one has failed."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())
            if error.errno != errno.EPIPE:  # a reader that has seen enough is no fault
                print(f"standard output cannot be written ({error.strerror}); the command goes on", file=sys.stderr)
            return memoryview(data).nbytes


def lasting_output() -> None:
    """Let the process's own standard output outlast its reader."""
    out = sys.stdout
    if out is not sys.__stdout__ or not isinstance(out, io.TextIOWrapper):
        return  # somebody has put another in its place
    raw = _Lasting(out.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=out.encoding, errors=out.errors, line_buffering=out.line_buffering
    )
