"""The lock of a run: one process writes a run at a time, and the lock goes with the process however it dies."""

import fcntl
import os
import time
from pathlib import Path

from stretto.errors import ResumeError

__all__ = ["RunLock", "is_locked"]

# Readers hold the lock for microseconds while they look; a writer that meets one tries again.
_TRIES = 10
_PAUSE_S = 0.02


class RunLock:
    """An exclusive ``flock`` on ``path``, taken at construction. Raises ResumeError naming the pid that holds it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for attempt in range(_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == _TRIES - 1:
                    holder = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").strip()
                    os.close(self._descriptor)
                    raise ResumeError(
                        f"run {path.parent.name!r} is being written by process {holder}. "
                        f"Wait until it ends, or stop it (kill -INT {holder} saves and exits)."
                    ) from None
                time.sleep(_PAUSE_S)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock. A missing file is not locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
