"""The tensors of a checkpoint, read part by part, whoever wrote them: one process or any number of ranks.

    policy.safetensors                        one process: everything
    policy.0of2.safetensors, .1of2. ...       a rank each, its rows of every tensor of which it has any
    policy.shards.json                        {"files": [...], "tensors": {name: {"shape": [...], "starts": [0, 4, 7]}}}

Rows ``starts[i]`` up to ``starts[i + 1]`` of a tensor lie in file i. Not the format of torch.distributed.checkpoint,
whose index is a pickle: whoever opens one runs what is in it.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stretto.backends.torch.ranks import Cut
from stretto.errors import StoreError

__all__ = ["Stored", "index_file", "index_of", "is_stored", "part_file"]


def part_file(folder: Path, stem: str, cut: Cut) -> Path:
    """The file of one part."""
    return folder / (f"{stem}.safetensors" if cut.parts == 1 else f"{stem}.{cut.place}of{cut.parts}.safetensors")


def index_file(folder: Path, stem: str) -> Path:
    """The file that says where rows lie."""
    return folder / f"{stem}.shards.json"


def index_of(shapes: Mapping[str, Sequence[int]], parts: int) -> dict[str, object]:
    """What is written there, for tensors of these shapes; file names begin behind the stem."""

    def starts(rows: int) -> list[int]:
        return [Cut(place=i, parts=parts).rows(rows)[0] for i in range(parts)] + [rows]

    return {
        "files": [f"{i}of{parts}.safetensors" for i in range(parts)],
        "tensors": {name: {"shape": list(shape), "starts": starts(shape[0])} for name, shape in shapes.items()},
    }


def is_stored(folder: Path, stem: str) -> bool:
    """Whether there are tensors of this name."""
    return (folder / f"{stem}.safetensors").is_file() or index_file(folder, stem).is_file()


class Stored:
    """What was written as ``stem``; ``file`` is what messages name. StoreError if it cannot be read."""

    def __init__(self, folder: Path, stem: str) -> None:
        index = index_file(folder, stem)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._starts: dict[str, tuple[int, ...]] = {}
        self._files: list[Any] = []
        self.file = index if index.is_file() else folder / f"{stem}.safetensors"
        try:
            self._read_index(folder, stem)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable(error) from error

    def part(self, name: str, cut: Cut) -> Tensor:
        """These rows of a tensor."""
        shape = self.shapes[name]
        start, stop = cut.rows(shape[0]) if shape else (0, 1)
        found: list[Tensor] = []
        try:
            for file, (low, high) in zip(self._files, pairwise(self._starts[name]), strict=True):
                first, last = max(start, low), min(stop, high)
                if first < last:
                    stored = file.get_slice(name)
                    found.append(stored[first - low : last - low] if shape else file.get_tensor(name))
        except SafetensorError as error:
            raise self._unreadable(error) from error
        rows = found[0] if len(found) == 1 else torch.cat(found) if found else torch.empty(0, *shape[1:])
        if shape and len(rows) != stop - start:
            raise self._unreadable(f"rows of {name!r} are missing")
        return rows

    def _read_index(self, folder: Path, stem: str) -> None:
        if not self.file.name.endswith(".json"):
            self._files = [_opened(self.file)]
            names = cast(Sequence[str], self._files[0].keys())
            self.shapes = {name: tuple(self._files[0].get_slice(name).get_shape()) for name in names}
            self._starts = {name: (0, shape[0] if shape else 1) for name, shape in self.shapes.items()}
            return
        index = cast(Mapping[str, Any], json.loads(self.file.read_text(encoding="utf-8")))
        tensors = cast(Mapping[str, Mapping[str, Sequence[int]]], index["tensors"])
        self._files = [_opened(folder / f"{stem}.{Path(str(name)).name}") for name in index["files"]]
        self.shapes = {name: tuple(each["shape"]) for name, each in tensors.items()}
        self._starts = {name: tuple(each["starts"]) for name, each in tensors.items()}

    def _unreadable(self, why: object) -> StoreError:
        return StoreError(f"{str(self.file)!r} cannot be read: {why}. Take an older checkpoint.")


def _opened(file: Path) -> Any:
    return safe_open(file, framework="pt")
