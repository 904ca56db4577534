"""Weights as buckets of bytes, to be carried to engines in other processes: cut, summed, and put together again.

A bucket holds whole tensors; one that is larger than the limit is a bucket by itself. Owns no transport.
"""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from stretto.errors import EngineError
from stretto.roles import NamedTensor, WeightSink

__all__ = ["BUCKET_BYTES", "Bucket", "Bytes", "Placed", "fill_buckets", "write_bucket"]

BUCKET_BYTES = 64 * 2**20
"""A bucket's size, where no tensor is larger: small beside a model, large beside what a message costs."""

Bytes = NDArray[np.uint8]
_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A tensor in a bucket: its type by torch's name (``float32``), or numpy's where ``array``; where it begins."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int
    array: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What a bucket holds, and the 64-bit xxh3 (hex) of its bytes as they were sent."""

    tensors: tuple[Placed, ...]
    checksum: str


def fill_buckets(tensors: Iterable[NamedTensor], limit: int = BUCKET_BYTES) -> Iterator[tuple[Bucket, Bytes]]:
    """The tensors in order, in buckets of about ``limit`` bytes. Each is let go of before the next is asked for."""
    placed: list[Placed] = []
    parts: list[Bytes] = []
    end = 0
    for tensor in tensors:
        raw = _bytes(tensor.data)
        if placed and end + len(raw) > limit:
            yield _joined(placed, parts, end)
            placed, parts, end = [], [], 0
        placed.append(_placed(tensor, end, len(raw)))
        parts.append(raw)
        end += -(-len(raw) // _ALIGN) * _ALIGN
    if placed:
        yield _joined(placed, parts, end)


def write_bucket(bucket: Bucket, data: Bytes, sink: WeightSink) -> None:
    """Write a bucket's tensors into ``sink``. EngineError if the bytes are not those that were sent."""
    found = xxhash.xxh3_64_hexdigest(data.data)
    if found != bucket.checksum:
        raise EngineError(
            f"weights arrived with other bytes than were sent (checksum {found}, sent {bucket.checksum}; "
            f"{bucket.tensors[0].name} and {len(bucket.tensors) - 1} more). Restart the engine, and check the memory."
        )
    for placed in bucket.tensors:
        raw = data[placed.start : placed.start + placed.num_bytes]
        if placed.array:
            sink.write(NamedTensor(name=placed.name, data=raw.view(placed.dtype).reshape(placed.shape)))
            continue
        sink.write(NamedTensor(name=placed.name, data=_tensor(raw, getattr(torch, placed.dtype), placed.shape)))


def _tensor(raw: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not len(raw):
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():  # of memory that must not be written, which nobody does: a sink copies
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)


def _placed(tensor: NamedTensor, start: int, num_bytes: int) -> Placed:
    data = tensor.data
    dtype = str(data.dtype).removeprefix("torch.")
    return Placed(
        name=tensor.name,
        dtype=dtype,
        shape=tuple(data.shape),
        start=start,
        num_bytes=num_bytes,
        array=not isinstance(data, Tensor),
    )


def _joined(placed: list[Placed], parts: list[Bytes], size: int) -> tuple[Bucket, Bytes]:
    joined = np.zeros(size, np.uint8)
    for one, part in zip(placed, parts, strict=True):
        joined[one.start : one.start + one.num_bytes] = part
    return Bucket(tensors=tuple(placed), checksum=xxhash.xxh3_64_hexdigest(joined.data)), joined


def _bytes(data: object) -> Bytes:
    if isinstance(data, Tensor):
        # numpy knows no bfloat16; bytes are bytes.
        return data.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
