"""The manifest of a checkpoint: what it is a checkpoint of, and the size and hash of every file in it.

A manifest proves itself: its text is the only text with its content, and that content includes its own hash. So a
changed byte anywhere in a checkpoint is found. Owns the format and the check; saving and choosing is ``checkpoints``.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from stretto.errors import StoreError
from stretto.store.durable import encode_json

__all__ = [
    "MANIFEST",
    "PHASES",
    "Checkpoint",
    "FileEntry",
    "Header",
    "Manifest",
    "checkpoint_name",
    "checkpoint_order",
    "encode_manifest",
    "hash_file",
    "load_manifest",
    "verify",
]

MANIFEST = "manifest.json"
SCHEMA = 1

PHASES = ("warmup", "main")
"""The phases of a run, in their order."""

_NAME = re.compile(r"(?:(?P<phase>[a-z]+)-)?step-(?P<steps>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a checkpoint is of.

    ``version``: weights published so far. ``phase_done``: the phase has ended, and the next begins from here.
    ``metrics``: of the newest evaluation, made when ``evaluated_at`` steps were done; the checkpoint can be the best
    only if that is ``steps_done``.
    """

    phase: str
    steps_done: int
    version: int
    phase_done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    evaluated_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file's size and the hexadecimal xxh3-64 of its bytes."""

    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """``files`` by path relative to the checkpoint. ``seq``: the newest event when the checkpoint was taken."""

    header: Header
    seq: int
    files: Mapping[str, FileEntry]

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def header(self) -> Header:
        """What it is of."""
        return self.manifest.header


def checkpoint_name(phase: str, steps_done: int) -> str:
    """``step-N`` in the main phase, ``warmup-step-N`` in the warm-up."""
    assert phase in PHASES, phase
    return f"step-{steps_done}" if phase == "main" else f"{phase}-step-{steps_done}"


def checkpoint_order(name: str) -> tuple[int, int] | None:
    """What checkpoints are sorted by: phase, then steps. None if ``name`` is not a checkpoint's."""
    match = _NAME.fullmatch(name)
    phase = "main" if match is None or match["phase"] is None else match["phase"]
    return None if match is None or phase not in PHASES else (PHASES.index(phase), int(match["steps"]))


def hash_file(path: Path) -> FileEntry:
    """Size and hash of a file, read in pieces. OSError passes through."""
    digest = xxhash.xxh3_64()
    size = 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return FileEntry(bytes=size, xxh3=digest.hexdigest())


def encode_manifest(manifest: Manifest) -> bytes:
    """The one text of a manifest. Raises ValueError for metrics that are not finite."""
    content = {"schema": SCHEMA, "header": manifest.header, "seq": manifest.seq, "files": manifest.files}
    text = encode_json(content)
    return f'{{"xxh3":"{xxhash.xxh3_64_hexdigest(text.encode("ascii"))}","content":{text}}}\n'.encode("ascii")


def load_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint folder ``path``. Raises StoreError with the reason if it is missing or damaged."""
    try:
        data = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise StoreError(f"{path} has no {MANIFEST}: it was not saved to its end.") from None
    except OSError as error:
        raise StoreError(f"{path / MANIFEST} cannot be read: {error.strerror}.") from error
    try:
        raw: dict[str, Any] = json.loads(data)["content"]
        schema = raw["schema"]
        manifest = Manifest(
            header=Header(**raw["header"]),
            seq=raw["seq"],
            files={name: FileEntry(**entry) for name, entry in raw["files"].items()},
        )
        whole = schema == SCHEMA and encode_manifest(manifest) == data
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path / MANIFEST} is damaged: {type(error).__name__}: {error}.") from error
    if not whole:
        raise StoreError(f"{path / MANIFEST} is damaged (its hash differs), or of another schema than {SCHEMA}.")
    return manifest


def verify(path: Path) -> Checkpoint:
    """The checkpoint at ``path``, every byte of it checked. Raises StoreError naming the first file that is wrong."""
    manifest = load_manifest(path)
    for name, entry in manifest.files.items():
        file = path / name
        try:
            size = os.stat(file).st_size
            found = hash_file(file) if size == entry.bytes else None
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error.strerror}.") from error
        if found is None:
            raise StoreError(f"{file} has {size} bytes instead of {entry.bytes}.")
        if found != entry:
            raise StoreError(f"{file} is damaged: its hash is {found.xxh3} instead of {entry.xxh3}.")
    return Checkpoint(path=path, manifest=manifest)
