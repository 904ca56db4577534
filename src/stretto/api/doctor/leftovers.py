"""What runs left that were killed: their names, half-written files, and processes whose driver is gone.

Reads only; ``remove_files`` removes half-written files, which no command would ever read, and nothing else.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from stretto.errors import ResumeError, StoreError
from stretto.runtime.cluster.guard import PREFIX, processes_of
from stretto.store import RunView, list_runs, word_for
from stretto.store.lock import RunLock, is_locked

__all__ = ["Leftover", "find_leftovers", "orphans", "remove_files"]

_HALF = ("checkpoints/.tmp-*", ".new-*", ".*.tmp")
"""What is being written, or removed, when a process dies; it gets its name only when it is whole."""

_ASIDE = {
    "checkpoints/.bad-*": "a damaged checkpoint that a resume set aside; it goes after the next whole save",
    "checkpoints/.old-*": "a checkpoint that was being replaced; `stretto resume` puts it right",
    ".old-*": "an export that was being replaced; the next one removes it",
}

YOUNG_S = 60.0
"""A cluster's folder in which nothing runs yet may be of one that is being started, for this long."""

_CHILD = "from stretto.environments."
"""In the command line of every process that Stretto starts for code of users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing that was left: what it is, what to do, and whether ``remove_files`` would remove it."""

    kind: Literal["run", "damaged", "file", "aside", "process", "cluster"]
    name: str
    message: str
    remedy: str
    removable: bool = False


def find_leftovers(runs_dir: Path) -> list[Leftover]:
    """Everything in ``runs_dir``, and orphaned processes. Runs that are being written are left alone."""
    found: list[Leftover] = []
    for path in list_runs(runs_dir):
        if not is_locked(path / "run.lock"):
            found += _of_run(path)
    for path in sorted(runs_dir.glob("*/rollouts")) if runs_dir.is_dir() else []:
        run = path.parent
        if not (run / "run.json").exists() and not is_locked(run / "run.lock"):
            found.append(
                Leftover(
                    kind="damaged",
                    name=str(run),
                    message=f"{run} has no run.json: its process died as it was made, before anything was run.",
                    remedy="Remove the folder.",
                )
            )
    return [*found, *(_orphan(process) for process in orphans()), *_clusters(Path(tempfile.gettempdir()))]


def _of_run(path: Path) -> Iterator[Leftover]:
    try:
        view = RunView(path)
    except StoreError as error:
        yield Leftover(
            kind="damaged",
            name=str(path),
            message=f"The record of {path} is damaged: {error}",
            remedy="Look at the file it names; the other runs are not touched by it.",
        )
        return
    word = word_for(path)
    if view.status == "killed":
        yield Leftover(
            kind="run",
            name=path.name,
            message=f"Run {path.name} was killed at step {view.steps}, and no process is writing it.",
            remedy=f"Go on with `stretto resume {word}`, or remove its folder.",
        )
    for pattern in _HALF:
        for left in sorted(path.glob(pattern)):
            yield _half(left)
    for pattern, what in _ASIDE.items():
        for left in sorted(path.glob(pattern)):
            yield Leftover(kind="aside", name=str(left), message=f"{left} is {what}.", remedy="Nothing to do.")


def _half(path: Path) -> Leftover:
    return Leftover(
        kind="file",
        name=str(path),
        message=f"{path} was being written when its process died ({_size(path) / 1e6:.3g} MB).",
        remedy="`stretto doctor --fix` removes it, and so does resuming the run.",
        removable=True,
    )


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def orphans() -> list[psutil.Process]:
    """Processes that were started for a reward or the like and whose parent is no Python program any more."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if any(_CHILD in word for word in process.cmdline()) and not _has_driver(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended while it was looked at, or it is another user's
    return found


def _has_driver(process: psutil.Process) -> bool:
    """Whether its parent could be a driver: a Python program that is older than it."""
    parent = process.parent()
    return parent is not None and parent.pid != 1 and "python" in " ".join(parent.cmdline()[:2]).lower()


def _is_driven(process: psutil.Process) -> bool:
    try:
        return _has_driver(process)
    except psutil.NoSuchProcess:
        return False


def _orphan(process: psutil.Process) -> Leftover:
    return Leftover(
        kind="process",
        name=str(process.pid),
        message=f"Process {process.pid} was started for a run whose driver is gone, and lives on.",
        remedy=f"End it with `kill {process.pid}`.",
    )


def _clusters(temporary: Path) -> Iterator[Leftover]:
    """Ray clusters that were started for runs whose drivers are gone: their folders, and processes that live."""
    for folder in sorted(temporary.glob(f"{PREFIX}*")):
        living = list(processes_of(str(folder)))
        young = not living and time.time() - folder.stat().st_mtime < YOUNG_S
        if young or any(_is_driven(process) for process in living):
            continue
        pids = " ".join(str(process.pid) for process in sorted(living, key=lambda process: process.pid))
        yield Leftover(
            kind="cluster",
            name=str(folder),
            message=f"{folder} is of a Ray cluster whose run is gone"
            + (f", and its processes live on: {pids}." if pids else "; none of its processes lives."),
            remedy=(f"End them with `kill -9 {pids}`, then remove the folder." if pids else "Remove the folder."),
        )


def remove_files(runs_dir: Path) -> list[str]:
    """Remove what ``find_leftovers`` calls removable, each run locked while it is done; the names of what is gone."""
    removed: list[str] = []
    for path in list_runs(runs_dir):
        try:
            lock = RunLock(path / "run.lock")
        except ResumeError:
            continue  # it is being written: what looks half-written is
        try:
            for pattern in _HALF:
                removed += [_remove(left) for left in sorted(path.glob(pattern))]
        finally:
            lock.release()
    return removed


def _remove(path: Path) -> str:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return str(path)
