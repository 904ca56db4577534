"""Bytes that survive: JSON encoding for everything the store writes, and files that are whole or absent.

Owns the one JSON encoder of the record, fsync and the temporary-file-then-rename step. Knows nothing of runs.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from stretto.errors import StoreError

__all__ = ["encode_json", "fsync_folder", "fsync_path", "read_json", "write_durable", "write_json"]


def _plain(value: object) -> object:
    """What the encoder does not know: slotted dataclasses as mappings, numpy scalars as numbers, other mappings."""
    if is_dataclass(value):
        return {name: getattr(value, name) for name in cast(Any, value).__slots__}
    if isinstance(value, np.generic):
        return cast(object, value.item())
    if isinstance(value, Mapping):
        return dict(cast(Mapping[str, object], value))
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


# ASCII output keeps a line one line whatever a model writes (line separators, lone surrogates).
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False, default=_plain)


def encode_json(value: object) -> str:
    """One line of JSON. Numbers that are not finite raise ValueError, other values TypeError."""
    return _encoder.encode(value)


def fsync_path(path: Path) -> None:
    """Wait until the file is on disk."""
    _fsync(path, os.O_RDONLY)


def fsync_folder(path: Path) -> None:
    """Wait until the folder's entries (created, renamed, removed) are on disk."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durable(path: Path, data: bytes) -> None:
    """Write ``path`` so that after any crash it holds either what it held before, or all of ``data``."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write a JSON value, on one line. Raises StoreError for numbers that are not finite; OSError passes through."""
    try:
        text = encode_json(value)
    except ValueError as error:
        raise StoreError(f"{path} cannot be written: {error}. State must be finite numbers, text and lists.") from error
    path.write_text(text + "\n", encoding="ascii")


def read_json(path: Path) -> Any:
    """The JSON value in ``path``. Raises StoreError naming the file if it is missing or broken."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise StoreError(f"{path} is not valid JSON: {error}. The file was changed or damaged.") from error
