"""Append-only files of lines: one buffered write per flush, a torn last line tolerated by readers and cut by writers.

Owns buffering and the file's end. Knows nothing of what a line means.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from stretto.errors import StoreError

__all__ = ["LineFile", "cut_torn_line", "read_lines"]


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every whole line with its number, from 1. Bytes after the last newline are still being written, or torn."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


def cut_torn_line(path: Path) -> int:
    """Remove what follows the last newline; returns how many bytes that were. A missing file is left missing."""
    if not path.exists():
        return 0
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end


class LineFile:
    """A file that lines are appended to. Not thread-safe; its owner holds the lock.

    A write that fails (a full disk) leaves the file as it was before, keeps the lines for the next flush, and raises
    StoreError.
    """

    def __init__(self, path: Path) -> None:
        cut_torn_line(path)
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._descriptor).st_size
        self._lines: list[str] = []
        self.buffered = 0
        """Characters not yet written."""

    def append(self, line: str) -> None:
        """Take one line (without newline); it is written by the next flush."""
        self._lines.append(line)
        self.buffered += len(line) + 1

    def flush(self) -> None:
        """Hand the lines to the operating system: they survive the death of the process."""
        if not self._lines:
            return
        data = memoryview(("\n".join(self._lines) + "\n").encode("ascii"))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror}. Free space or fix the cause, then resume the run."
            ) from error
        self._size += len(data)
        self._lines.clear()
        self.buffered = 0

    def sync(self) -> None:
        """Flush, and wait until the lines are on disk: they survive the death of the machine."""
        self.flush()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written to disk: {error.strerror}.") from error

    def close(self) -> None:
        """Flush and close. Idempotent; the file is closed even if the flush raises."""
        if self._descriptor < 0:
            return
        try:
            self.flush()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1
