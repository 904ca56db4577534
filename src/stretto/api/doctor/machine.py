"""The machine without its accelerators: processor, memory, disk, and the threads that were set. Starts nothing."""

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from stretto.runtime.threads import usable_cores

__all__ = ["Machine", "look_at_machine", "parse_cpuinfo"]

_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
"""What decides how fast matrices are multiplied, by the names of Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Sizes in bytes. ``usable`` are the cores that this process may run on; ``omp_threads`` is OMP_NUM_THREADS.

    ``training_threads``: what ``backend.threads: 0`` gives, in turns with an engine and beside one that has a thread.
    """

    system: str
    cpu: str
    features: tuple[str, ...]
    physical: int
    logical: int
    usable: int
    memory_bytes: int
    available_bytes: int
    disk_free_bytes: int
    omp_threads: str | None
    training_threads: tuple[int, int]


def look_at_machine(runs_dir: Path) -> Machine:
    """This machine; ``runs_dir`` (or the nearest folder above it that exists) is where disk space is looked at."""
    cpu, features = _cpu()
    memory = psutil.virtual_memory()
    logical, cores = psutil.cpu_count() or 1, usable_cores()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        cpu=cpu,
        features=features,
        physical=psutil.cpu_count(logical=False) or logical,
        logical=logical,
        usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical,
        memory_bytes=memory.total,
        available_bytes=memory.available,
        disk_free_bytes=shutil.disk_usage(_existing(runs_dir.absolute())).free,
        omp_threads=os.environ.get("OMP_NUM_THREADS"),
        training_threads=(cores, max(1, cores - 1)),
    )


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)


def _cpu() -> tuple[str, tuple[str, ...]]:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():  # Linux only
        return parse_cpuinfo(cpuinfo.read_text(errors="replace"))
    return platform.processor() or platform.machine(), ()


def parse_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """The model's name and those features that matter, from the text of ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name") or platform.machine(), tuple(f for f in _FEATURES if f in flags)
