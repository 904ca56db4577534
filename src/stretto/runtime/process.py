"""How this process treats memory while it trains: Python's collector and the C allocator, for as long as a run goes."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["tuned_memory"]

# Numbers of mallopt(3) in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST = 2**30
_NEW_OBJECTS = 20_000


@contextmanager
def tuned_memory() -> Iterator[None]:
    """Collect garbage less often, and keep freed memory for the next step.

    What lives when this begins (every module that was imported) is not looked at again: the collector's passes over it
    cost a twentieth of a small model's steps. glibc gives the memory of large tensors back to the system when they are
    freed, and takes every page anew in the next layer; here it goes back at the end.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    mallopt, trim = getattr(libc, "mallopt", None), getattr(libc, "malloc_trim", None)
    if mallopt is not None:
        for name, value in ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _LARGEST), (_ARENA_MAX, 1)):
            mallopt(name, value)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        if mallopt is not None and trim is not None:
            mallopt(_TRIM_THRESHOLD, 128 * 1024)
            trim(0)
