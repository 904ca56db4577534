"""What travels along the edges of a workflow, taken apart: into named tensors, numbers and texts, in a fixed order.

So that values of any type can be described, written and compared by the same rules. Nothing is pickled: what has no
parts that are known here is named by its type.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import xxhash

from stretto.types import Array, Batch, Column, Group, Key, Metric, Trajectory

__all__ = ["Leaf", "array_of", "describe", "first_place", "leaf_hash", "leaves_of", "row_name"]

Leaf: TypeAlias = Array | str
"""A tensor as an array, or the text of a number, a text or whatever else (``repr``: it tells every bit)."""


def leaves_of(value: object, name: str = "") -> Iterator[tuple[str, Leaf]]:
    """(name, leaf) of every part of a value. ``info`` of a trajectory is left out: an environment may put times
    there."""
    match value:
        case Column():
            yield name if name.rpartition(".")[2] == value.name else _below(name, value.name), value.values
        case Batch():
            for row in value.trajectories:
                yield from leaves_of(row, _below(name, row_name(row.key)))
        case Group():
            yield _below(name, "prompt"), repr(value.prompt.uid)
            for row in value.trajectories:
                yield from leaves_of(row, _below(name, row_name(row.key)))
        case Trajectory():
            yield from _of_row(value, name)
        case Metric():
            yield name, repr(value.value)
        case Key():
            yield name, row_name(value)
        case None | bool() | int() | float() | str() | bytes():
            yield name, repr(value)
        case Mapping():
            for key, below in cast("Mapping[object, object]", value).items():
                yield from leaves_of(below, _below(name, str(key)))
        case tuple() | list():
            for index, below in enumerate(cast("list[object]", value)):
                yield from leaves_of(below, _below(name, str(index)))
        case _ if (array := array_of(value)) is not None:
            yield name, array
        case _ if is_dataclass(value) and not isinstance(value, type):
            for field in fields(value):
                yield from leaves_of(getattr(value, field.name), _below(name, field.name))
        case _:
            yield name, f"a {type(value).__name__}"


def _of_row(row: Trajectory, name: str) -> Iterator[tuple[str, Leaf]]:
    """What a trajectory holds, in the order in which it comes to be."""
    yield _below(name, "tokens"), row.token_ids_T
    yield _below(name, "mask"), row.mask_T
    yield _below(name, "logprobs"), row.logprobs_T
    yield _below(name, "versions"), repr([(span.version, span.length) for span in row.versions])
    yield _below(name, "finish"), repr(row.finish)
    yield _below(name, "text"), repr(row.text)
    yield _below(name, "temperature"), repr(row.temperature)
    for key, score in sorted(row.rewards.items()):
        yield _below(name, f"rewards.{key}"), repr(score)
    yield _below(name, "reward"), repr(row.reward)


def row_name(key: Key) -> str:
    """How a row is called: by draw and sample, and by part and Model where there are several."""
    part = f" part {key.part}" if key.part else ""
    model = "" if key.model == "policy" else f" of {key.model}"
    return f"draw {key.draw} sample {key.sample}{part}{model}"


def _below(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def array_of(value: object) -> Array | None:
    """A numpy array or a torch tensor as an array with the same numbers; None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "detach"):
        return np.asarray(value) if isinstance(value, np.generic) else None
    tensor = cast(Any, value).detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # numpy has none; float32 holds every one of its numbers
        tensor = tensor.float()
    return cast(Array, tensor.numpy())


def leaf_hash(leaf: Leaf) -> str:
    """A hash of the bits, type and shape of a leaf."""
    if isinstance(leaf, str):
        return leaf
    digest = xxhash.xxh3_128(f"{leaf.dtype.str}{leaf.shape}".encode())
    digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


def first_place(a: Leaf, b: Leaf) -> tuple[str, str, str]:
    """Where two leaves differ first: the index (empty for what has none), and what each has there."""
    if isinstance(a, str) or isinstance(b, str):
        return "", _shown(a), _shown(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        if a.ndim == b.ndim == 1 and a.dtype == b.dtype:  # a row that ends earlier: where it parts
            shared = min(len(a), len(b))
            place = _index(a[:shared], b[:shared])
            if place is not None:
                return _told(a[:shared], b[:shared], place)
        return "", _shown(a), _shown(b)
    place = _index(a, b)
    assert place is not None, "leaves that do not differ"
    return _told(a, b, place)


def _index(a: Array, b: Array) -> int | None:
    """The flat index of the first element whose bits differ."""
    if not a.size:
        return None
    bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.dtype.itemsize) for x in (a, b)]
    differ = (bits[0] != bits[1]).any(axis=1)
    return int(differ.argmax()) if differ.any() else None


def _told(a: Array, b: Array, place: int) -> tuple[str, str, str]:
    index = [int(i) for i in np.unravel_index(place, a.shape)]
    return str(index), _number(a.reshape(-1)[place]), _number(b.reshape(-1)[place])


def _number(value: object) -> str:
    """All digits of a number."""
    return str(value)


def _shown(leaf: Leaf) -> str:
    return leaf if isinstance(leaf, str) else f"{leaf.dtype.name} {list(leaf.shape)}"


def describe(value: object) -> str:
    """What a value is, in a few words: its type, and the names and shapes of its tensors."""
    kind = type(value).__name__
    match value:
        case Batch():
            return f"Batch of {_count(len(value.groups), 'group')}, {_rows(value.trajectories)}"
        case Group():
            return f"Group of draw {value.draw}, {_rows(value.trajectories)}"
        case tuple() if value and all(isinstance(item, Group) for item in value):
            groups = cast("tuple[Group, ...]", value)
            return f"{_count(len(groups), 'Group')}, {_rows(tuple(t for g in groups for t in g.trajectories))}"
    leaves = list(leaves_of(value))
    tensors = [f"{name or 'tensor'} {_shown(leaf)}" for name, leaf in leaves if not isinstance(leaf, str)]
    numbers = len(leaves) - len(tensors)
    parts = tensors[:4] + ([f"{len(tensors) - 4} more tensors"] if len(tensors) > 4 else [])
    parts += [_count(numbers, "value")] if numbers else []
    return f"{kind}: {', '.join(parts)}" if parts else kind


def _rows(rows: tuple[Trajectory, ...]) -> str:
    tokens = sum(len(t.token_ids_T) for t in rows)
    return f"{_count(len(rows), 'trajectory')}, {tokens:,} tokens".replace("trajectorys", "trajectories")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
