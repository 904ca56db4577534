"""The facts of a cluster, there or not: devices in hosts, what they hold, how fast they compute and talk.

Ranks are places in ``Cluster.devices``: hosts in their order, and the devices of each in theirs. Pure; asks nothing.
"""

from dataclasses import dataclass
from functools import cached_property

__all__ = ["Cluster", "Device", "Host", "Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one device is: ``flops`` of matrix products a second in the 16-bit type, ``flops_32`` in float32, and bytes
    a second of its own memory. ``kind``: the name it is shown by (``cpu core``, ``h100``)."""

    kind: str
    memory_bytes: int
    flops: float
    flops_32: float
    memory_bytes_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Devices that reach each other by ``link_bytes_s``, and ``memory_bytes`` of the host itself (0: unknown)."""

    name: str
    devices: tuple[Device, ...]
    link_bytes_s: float
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts that reach each other by ``network_bytes_s`` each, in the order that numbers the ranks."""

    hosts: tuple[Host, ...]
    network_bytes_s: float

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every device by rank."""
        return tuple(device for host in self.hosts for device in host.devices)

    @cached_property
    def host_of(self) -> tuple[int, ...]:
        """The place of its host, by rank."""
        return tuple(place for place, host in enumerate(self.hosts) for _ in host.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one Model lies on the ranks of a role: ``replicas`` whole copies, each cut into ``shards`` (FSDP2, or the
    copies of HSDP), each shard's products split over ``tensor`` ranks, sequences over ``context`` ranks.

    Of an engine ``replicas`` are engines, and ``tensor`` the ranks of one.
    """

    replicas: int = 1
    shards: int = 1
    tensor: int = 1
    context: int = 1

    @property
    def size(self) -> int:
        """How many ranks that takes."""
        return self.replicas * self.shards * self.tensor * self.context
