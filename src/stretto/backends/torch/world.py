"""The world of ranks that train together: where they meet, and the process group that follows.

A meeting place is ``file:PATH`` on one machine, so that nothing listens for it, or ``tcp:HOST:PORT`` where rank 0 does.
"""

import datetime
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from stretto.backends.torch.devices import open_device
from stretto.backends.torch.ranks import Ranks, open_ranks
from stretto.plan.cluster import Layout

__all__ = ["World", "host_meeting", "open_world"]

MEETING_S = 120.0
"""How long ranks wait for each other when they meet. Later a stalled rank is the watch's to find."""
COLLECTIVE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """That the process group is there."""

    device: torch.device

    def ranks(self, replicas: int, shards: int) -> Ranks | None:
        """All of them, in this layout. Collective."""
        return open_ranks(Layout(replicas=replicas, shards=shards), self.device)


def host_meeting() -> tuple[TCPStore, str]:
    """Listen for the other ranks on a free port of this host's address; who listens, and where."""
    address = socket.gethostbyname(socket.gethostname())
    store = TCPStore(address, 0, None, True, wait_for_workers=False)
    return store, f"tcp:{address}:{store.port}"


def open_world(rank: int, size: int, place: str, device: str, hosted: Store | None = None) -> World:
    """Meet the other ranks at ``place`` and make the process group: nccl on accelerators, gloo on CPUs.

    ``hosted``: what ``host_meeting`` gave, on the rank that called it.
    """
    on = open_device(device, "backend.device")
    if on.type == "cuda":
        torch.cuda.set_device(on)
    wait = datetime.timedelta(seconds=MEETING_S)
    kind, _, where = place.partition(":")
    if kind == "file":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        store: Store = FileStore(str(Path(where)), size)
    else:
        host, _, port = where.rpartition(":")
        if ipaddress.ip_address(host).is_loopback:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        store = hosted or TCPStore(host, int(port), None, False, timeout=wait)
    store.set_timeout(wait)
    dist.init_process_group(
        "nccl" if on.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=COLLECTIVE_S),
    )
    return World(device=on)


def _loopback() -> str:
    """The name of the interface that reaches this machine alone."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), names[0])
