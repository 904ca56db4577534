"""Where the contents of tensors lie while the memory of their device is wanted for something else.

A tensor keeps its identity and type, and is empty meanwhile; whoever holds it holds it still.
"""

import mmap
import tempfile
from collections.abc import Hashable, Mapping
from typing import BinaryIO, Generic, Literal, TypeVar

import torch
from torch import Tensor

from stretto.errors import StoreError
from stretto.memory import give_back_memory

__all__ = ["Shelf"]

K = TypeVar("K", bound=Hashable)


class Shelf(Generic[K]):
    """Tensors by key, in host memory, or on ``disk`` in a file without a name, which goes with the process."""

    def __init__(self, to: Literal["memory", "disk"]) -> None:
        self._to = to
        self._tensors: dict[K, Tensor] = {}
        self._contents: dict[K, Tensor] = {}
        self._devices: dict[K, torch.device] = {}

    def put(self, tensors: Mapping[K, Tensor]) -> None:
        """Take the contents of ``tensors``, of which no two share memory, and free what they lay in. StoreError if the
        disk has no room; nothing is taken then."""
        assert not self._tensors, "the shelf is full"
        self._contents = _in_file(tensors) if self._to == "disk" else {k: _on_host(t) for k, t in tensors.items()}
        self._tensors = dict(tensors)
        self._devices = {key: tensor.device for key, tensor in tensors.items()}
        for tensor in tensors.values():
            tensor.data = tensor.new_empty(0)
        give_back_memory()
        if any(tensor.device.type == "cuda" for tensor in tensors.values()):
            torch.cuda.empty_cache()

    def give_back(self) -> None:
        """Fill the tensors as they were."""
        for key, tensor in self._tensors.items():
            tensor.data = self._contents[key].to(self._devices[key], copy=True)
        self._tensors, self._contents = {}, {}

    def read(self) -> Mapping[K, Tensor]:
        """What lies here, on the host. It stays readable after it was given back."""
        return self._contents


def _on_host(tensor: Tensor) -> Tensor:
    host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
    return host.copy_(tensor)


def _in_file(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """The same bytes, mapped from a file."""
    try:
        with tempfile.TemporaryFile(prefix="stretto-offload-") as file:
            starts = {key: _append(file, tensor) for key, tensor in tensors.items()}
            file.flush()
            size = file.tell()
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    except OSError as error:
        raise StoreError(
            f"the trainer's state cannot be put on disk in {tempfile.gettempdir()} (offload.to=disk): {error.strerror}."
            " Free space there, or set TMPDIR to a folder with more."
        ) from error
    return {
        key: torch.frombuffer(mapped, dtype=t.dtype, count=t.numel(), offset=starts[key]).view(t.shape)
        if t.numel()
        else torch.empty_like(t, device="cpu")
        for key, t in tensors.items()
    }


def _append(file: BinaryIO, tensor: Tensor) -> int:
    """Write the bytes of a tensor at the next place that suits any type; the place."""
    start = -(-file.tell() // 64) * 64
    file.seek(start)
    file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return start
