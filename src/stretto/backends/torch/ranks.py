"""Several processes that train one set of Models together, each on a device of its own: who they are and what they tell
each other. Owns the groups and the rule by which a tensor is cut; how Models are cut is in ``shards``.

Every rank calls the same methods in the same order with the same whole Batch and Columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError
from stretto.plan.cluster import Layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["WHOLE", "Cut", "Ranks", "check_ranks", "open_ranks"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Part ``place`` of ``parts`` of every tensor, along its first dimension."""

    place: int
    parts: int

    def rows(self, count: int) -> tuple[int, int]:
        """Which of ``count`` rows, from and up to: FSDP2 cuts as ``torch.chunk``, and the last parts may be empty."""
        each = -(-count // self.parts)
        return min(self.place * each, count), min((self.place + 1) * each, count)


WHOLE = Cut(place=0, parts=1)
"""All of every tensor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranks:
    """This process among those that train together: ``rank`` of ``size``, which hold ``replicas`` whole copies.

    ``mesh`` is [shards], or [replicas, shards] where there is more than one copy; ``group`` is of all of them and
    ``shard_group`` of those that hold one copy.
    """

    rank: int
    size: int
    replicas: int
    mesh: "DeviceMesh"
    group: dist.ProcessGroup
    shard_group: dist.ProcessGroup
    device: torch.device

    @property
    def cut(self) -> Cut:
        """What this rank holds of every tensor."""
        shards = self.size // self.replicas
        return Cut(place=self.rank % shards, parts=shards)

    @property
    def writes(self) -> bool:
        """Whether its shards are those that a checkpoint takes: copies are equal, and the first one is written."""
        return self.rank < self.size // self.replicas

    def gather(self, value: T) -> list[T]:
        """What every rank says, by rank. Collective."""
        said: list[T | None] = [None] * self.size
        dist.all_gather_object(said, value, group=self.group)
        return cast(list[T], said)

    def most(self, count: int) -> int:
        """The largest of the counts. Collective."""
        return max(self.gather(count))

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place. Collective."""
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def norm(self, shards: Sequence[Tensor]) -> Tensor:
        """The norm of tensors of which this rank holds ``shards``: a scalar, equal on every rank. Collective."""
        own = torch.nn.utils.get_total_norm(shards).double().square()
        # Copies hold the same gradient, so one of them is summed.
        parts = [torch.zeros_like(own) for _ in range(self.cut.parts)]
        dist.all_gather(parts, own, group=self.shard_group)
        return reduce(torch.add, parts).sqrt().float()


def check_ranks(size: int, config: TorchBackendConfig, offload_to: str) -> None:
    """ConfigError for what works in one process alone."""
    if offload_to == "disk":
        raise ConfigError(
            f"offload.to=disk cannot be kept on {size} ranks, which put their shards in the memory of their hosts. Set "
            "it to memory."
        )
    if config.optimizer != "adamw":
        raise ConfigError(
            f"backend.optimizer={config.optimizer} cannot be used on {size} ranks: its blocks of 256 numbers do not "
            "end where shards do. Set it to adamw, whose moments are shared out among the ranks."
        )


def open_ranks(layout: Layout, device: torch.device, members: Sequence[int] | None = None) -> Ranks | None:
    """The ranks ``members`` of the world (None: all) in ``layout``; None in a process that is not one of them.

    ``torch.distributed.init_process_group`` has been called, and each process has chosen its device. Collective over
    the whole world, members or not. ConfigError for a layout of another size, or one that splits more than replicas and
    shards.
    """
    from torch.distributed.device_mesh import DeviceMesh  # takes long, and one process does without

    assert dist.is_initialized(), "call torch.distributed.init_process_group first"
    chosen = list(range(dist.get_world_size())) if members is None else list(members)
    if layout.tensor * layout.context != 1:
        raise ConfigError(
            f"backend torch trains in replicas and shards, and the layout has tensor={layout.tensor} and "
            f"context={layout.context}. Set both to 1."
        )
    if layout.size != len(chosen):
        raise ConfigError(
            f"a layout of {layout.replicas} replicas of {layout.shards} shards is for {layout.size} ranks, and there "
            f"are {len(chosen)}. Make replicas times shards equal to the number of ranks."
        )
    group = cast(dist.ProcessGroup, dist.new_group(chosen))
    shape = (layout.replicas, layout.shards) if layout.replicas > 1 else (layout.shards,)
    names = ("replicas", "shards")[-len(shape) :]
    mesh = DeviceMesh(device.type, torch.tensor(chosen).view(shape), mesh_dim_names=names)
    if dist.get_rank() not in chosen:
        return None
    return Ranks(
        rank=chosen.index(dist.get_rank()),
        size=layout.size,
        replicas=layout.replicas,
        mesh=mesh,
        group=group,
        shard_group=mesh.get_group("shards"),
        device=device,
    )
