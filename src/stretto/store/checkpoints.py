"""Checkpoints on disk: saved whole or not at all, chosen only if every byte is as written, removed only after a newer.

    .tmp-NAME   being written, or being removed      gone at the next open
    .old-NAME   replaced by a newer save of NAME     comes back at the next open if that save did not arrive
    .bad-NAME   set aside by a resume that skipped it    gone after the next whole save
    NAME        whole: its manifest was written last, and the folder renamed after every file was on disk

Owns the folder ``checkpoints/``. What is inside a checkpoint is its writer's; who holds the lock is ``run``.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import StoreError
from stretto.store.durable import fsync_folder, fsync_path
from stretto.store.manifest import (
    MANIFEST,
    Checkpoint,
    Header,
    Manifest,
    checkpoint_name,
    checkpoint_order,
    encode_manifest,
    hash_file,
    load_manifest,
    verify,
)

__all__ = [
    "Found",
    "Skipped",
    "clean",
    "list_checkpoints",
    "newest",
    "prune",
    "save",
    "set_aside",
]

_FULL_BYTES = 1 << 20
"""A file system with less room than this is full: libraries that write files do not all pass the cause on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A checkpoint that cannot be used, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The newest whole checkpoint (None if there is none), and the newer ones that were passed over for it."""

    taken: Checkpoint | None
    skipped: tuple[Skipped, ...] = ()


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders, oldest first, unchecked."""
    if not folder.is_dir():
        return []
    ordered = [(order, path) for path in folder.iterdir() if (order := checkpoint_order(path.name)) is not None]
    return [path for _, path in sorted(ordered)]


def newest(folder: Path) -> Found:
    """The newest checkpoint whose every byte is as written. Say what was skipped: it cost the user steps."""
    skipped: list[Skipped] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return Found(taken=verify(path), skipped=tuple(skipped))
        except StoreError as error:
            skipped.append(Skipped(path=path, reason=str(error)))
    return Found(taken=None, skipped=tuple(skipped))


def save(folder: Path, header: Header, write: Callable[[Path], None], seal: Callable[[], int]) -> Checkpoint:
    """Save what ``write`` puts into the folder it is given.

    ``seal`` is called after ``write``: it makes the event log durable and returns its newest ``seq``. A checkpoint of
    the same name is replaced. Raises StoreError naming the cause if the disk fails or is full; what else ``write``
    raises passes through. Either way nothing of the attempt stays, and older checkpoints are as they were.
    """
    assert header.evaluated_at is not None or not header.metrics, "metrics without the step they were measured at"
    folder.mkdir(exist_ok=True)
    path = folder / checkpoint_name(header.phase, header.steps_done)
    temporary = folder / f".tmp-{path.name}"
    _remove(temporary)
    try:
        temporary.mkdir()
        write(temporary)
        manifest = _seal(temporary, header, seal())
    except BaseException as error:
        cause = _disk_fault(error, folder)
        _remove(temporary)
        if cause is None:
            raise
        raise StoreError(
            f"checkpoint {path} cannot be saved: {cause}. Older checkpoints are intact. "
            "Free space or fix the cause, then resume the run."
        ) from error
    _move_in(temporary, path)
    return Checkpoint(path=path, manifest=manifest)


def _seal(temporary: Path, header: Header, seq: int) -> Manifest:
    """Bring every file to disk, then the manifest that vouches for them."""
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    for file in files:
        fsync_path(file)
    entries = {file.relative_to(temporary).as_posix(): hash_file(file) for file in files}
    manifest = Manifest(header=header, seq=seq, files=entries)
    try:
        data = encode_manifest(manifest)
    except ValueError as error:
        raise StoreError(f"checkpoint of {header} cannot be saved: its metrics are not finite numbers.") from error
    with open(temporary / MANIFEST, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    for inner in [path for path in temporary.rglob("*") if path.is_dir()]:
        fsync_folder(inner)
    fsync_folder(temporary)
    return manifest


def _move_in(temporary: Path, path: Path) -> None:
    """Give a whole checkpoint its name. What had the name is kept until the new one has it."""
    old = path.with_name(f".old-{path.name}")
    if path.exists():
        _remove(old)
        os.rename(path, old)
    os.rename(temporary, path)
    fsync_folder(path.parent)
    _remove(old)


def _disk_fault(error: BaseException, folder: Path) -> str | None:
    """Why the disk refused, or None if the error is about something else."""
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        return f"{os.strerror(error.errno)}{where}"
    if isinstance(error, StoreError) or not isinstance(error, Exception):
        return None
    if "No space left" in str(error) or shutil.disk_usage(folder).free < _FULL_BYTES:
        return f"No space left on device ({folder})"
    return None


def prune(folder: Path, *, keep_last: int, keep_best: str | None = None) -> None:
    """Remove all but the ``keep_last`` newest, and the best by ``keep_best``. Call after a whole save only.

    The best has the highest value among those evaluated at their own step in the newest one's phase; of equals the
    newest. Folders whose manifest is damaged count for nothing and are removed.
    """
    assert keep_last >= 1, keep_last
    known: list[Checkpoint] = []
    for path in list_checkpoints(folder):
        try:
            known.append(Checkpoint(path=path, manifest=load_manifest(path)))
        except StoreError:
            _remove(path)
    keep = {checkpoint.path for checkpoint in known[-keep_last:]}
    rated = [
        (c.header.metrics[keep_best], index)
        for index, c in enumerate(known)
        if keep_best is not None
        and c.header.phase == known[-1].header.phase
        and c.header.evaluated_at == c.header.steps_done
        and keep_best in c.header.metrics
    ]
    if rated:
        keep.add(known[max(rated)[1]].path)
    for checkpoint in known:
        if checkpoint.path not in keep:
            _remove(checkpoint.path)
    for path in folder.glob(".bad-*"):
        _remove(path)


def clean(folder: Path) -> None:
    """Put right what a killed save or removal left. Only the holder of the run's lock may call it."""
    if not folder.is_dir():
        return
    for old in folder.glob(".old-*"):
        path = folder / old.name.removeprefix(".old-")
        if not path.exists():
            os.rename(old, path)
    for left in [*folder.glob(".tmp-*"), *folder.glob(".old-*")]:
        _remove(left)


def set_aside(skipped: Skipped) -> None:
    """Take a damaged checkpoint out of the choice, so that steps taken from an older one are never behind it."""
    bad = skipped.path.with_name(f".bad-{skipped.path.name}")
    _remove(bad)
    os.rename(skipped.path, bad)


def _remove(path: Path) -> None:
    """Remove a folder; a checkpoint loses its name first, so that none is ever seen half removed."""
    if not path.exists():
        return
    if not path.name.startswith("."):
        hidden = path.with_name(f".tmp-removed-{path.name}")
        _remove(hidden)
        os.rename(path, hidden)
        path = hidden
    shutil.rmtree(path)
