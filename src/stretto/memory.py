"""How this process treats memory while it trains: Python's collector and the C allocator, for as long as a run goes."""

import ctypes
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

__all__ = ["give_back_memory", "peak_bytes", "reset_peak", "tuned_memory"]

# Numbers of mallopt(3) in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST = 2**30
_USUAL = 128 * 1024
"""What glibc starts with for both thresholds."""
_NEW_OBJECTS = 20_000


@contextmanager
def tuned_memory() -> Generator[None]:
    """Collect garbage less often, and keep freed memory for the next step.

    What lives when this begins (every module that was imported) is not looked at again: the collector's passes over it
    cost a twentieth of a small model's steps. glibc gives the memory of large tensors back to the system when they are
    freed, and takes every page anew in the next layer; here it goes back at the end.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    _set((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _LARGEST), (_ARENA_MAX, 1))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        _set((_MMAP_THRESHOLD, _USUAL), (_TRIM_THRESHOLD, _USUAL))
        give_back_memory()


def give_back_memory() -> None:
    """Let the system have what was freed: of use after something large was let go."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_bytes() -> int | None:
    """The most physical memory this process has had since ``reset_peak``, or since its start; None off Linux."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM")), None)
    except OSError:
        return None


def reset_peak() -> None:
    """Begin to look for the peak anew, where the system lets a process do that."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _set(*options: tuple[int, int]) -> None:
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        for name, value in options:
            mallopt(name, value)


def _libc() -> ctypes.CDLL | None:
    """glibc, or another C library that has no such functions; None where there is none to ask."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None
