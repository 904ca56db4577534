"""A Ray cluster for a run: one of this machine that is started and ends with the run, or one that is joined and stays.

Owns the seats of workers and the actors that are made on them. Nothing here knows what an actor does.
"""

import asyncio
import os
import sys
import sysconfig
from collections.abc import Awaitable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from stretto.config.sections import RayCluster
from stretto.errors import ConfigError, RunError
from stretto.runtime.cluster.joined import JoinedCluster
from stretto.runtime.cluster.own import OwnCluster
from stretto.runtime.cluster.seats import Host, Needs, Seat, hosts_of, resource_of, take_seats
from stretto.runtime.disposer import Disposer
from stretto.waiting import in_thread

__all__ = ["Cluster", "open_cluster"]

T = TypeVar("T")
ROOM = 1000
"""Calls that an actor may have under way: draws wait in the engine, not before it."""


async def open_cluster(config: RayCluster, disposer: Disposer) -> "Cluster":
    """Start a cluster on this machine, or join the one at ``config.address``. ConfigError if Ray is not installed, or
    with the reason why there is none."""
    if find_spec("ray") is None:
        raise ConfigError(
            "cluster.type=ray needs the package ray, which is not installed. Install stretto[ray], or set "
            "cluster.type=local."
        )
    there = OwnCluster(config) if config.address is None else JoinedCluster(config)
    disposer.own("the cluster", there, there.close, deadline_s=40.0)
    await there.start()
    cluster = Cluster(config, there.folder if isinstance(there, OwnCluster) else None)
    disposer.own("the seats", cluster, cluster.close)
    return cluster


class Cluster:
    """A cluster that is up. Where workers need devices, placement groups hold those of its seats, one group a host."""

    def __init__(self, config: RayCluster, folder: Path | None = None) -> None:
        """``folder``: one that goes with the cluster, if all of it is on this machine."""
        self._config, self.folder = config, folder
        self._groups: list[Any] = []
        self._held: dict[tuple[str, int], tuple[Any, int]] = {}  # of a seat: its group, and which bundle of that

    async def seats(self, needs: Needs) -> tuple[Seat, ...]:
        """A seat for every learner, then for every roller, and its device. ConfigError if there are too few."""
        seats = take_seats(await self._hosts(), needs, self._config.device)
        if resource_of(self._config.device) is not None:
            for host in dict.fromkeys(seat.host for seat in seats):
                await self._reserve(host, [seat.number for seat in seats if seat.host == host])
        return seats

    async def again(self, name: str, seat: Seat) -> Seat:
        """Where worker ``name``, whose process is gone, is started again: there, or if its host is gone as well,
        elsewhere. RunError if there is no device left."""
        hosts = await self._hosts()
        if seat.host in hosts:
            return seat
        resource = resource_of(self._config.device)
        if resource is None and hosts:
            return take_seats(hosts, Needs(learners=0, rollers=1), self._config.device)[0]
        for host in hosts:
            number = sum(node == host.node for node, _ in self._held)
            if number < (host.num_devices or 0):
                await self._reserve(host, [number])
                return Seat(host=host, number=number, num_beside=number + 1)
        raise RunError(
            f"{name} cannot be started again: its host {seat.host.address} left the cluster, and no other has a free "
            f"{resource or 'core'}. Add a host, and resume the run."
        )

    def name_of(self, host: Host) -> str:
        """A host, as messages name it."""
        return "this machine" if self._config.address is None else f"host {host.address}"

    async def make(self, kind: type, args: Sequence[Any], seat: Seat, num_threads: int) -> Any:
        """An actor of ``kind`` on a seat; that it was asked for, not that it is up."""
        import ray  # an extra: only who asks for a cluster needs it

        variables = {"OMP_NUM_THREADS": str(num_threads), "PYTHONPATH": os.pathsep.join(user_places())}
        made: Any = ray.remote(kind)
        options = made.options(
            num_cpus=0,
            max_concurrency=ROOM,
            max_restarts=0,
            runtime_env={"env_vars": variables},
            **self._on(seat),
        )
        return options.remote(*args)

    async def within(self, name: str, up: Awaitable[T], what: str = "up") -> T:
        """What ``up`` gives, which says that worker ``name`` is up, or ``what``. RunError if it does not in time."""
        limit_s = self._config.start_timeout_s
        try:
            return await asyncio.wait_for(up, limit_s)
        except TimeoutError:
            raise RunError(
                f"{name} was not {what} after {limit_s:g} s. Look at the cluster's load, or raise "
                "cluster.start_timeout_s."
            ) from None

    def close(self) -> None:
        """Give the devices back."""
        from ray.util import remove_placement_group  # an extra: only who asks for a cluster needs it

        while self._groups:
            remove_placement_group(self._groups.pop())

    async def _hosts(self) -> tuple[Host, ...]:
        import ray  # an extra: only who asks for a cluster needs it

        return hosts_of(await in_thread(ray.nodes, "stretto-hosts"), self._config.device)

    def _on(self, seat: Seat) -> dict[str, Any]:
        """Options of an actor on a seat."""
        from ray.util.scheduling_strategies import (  # an extra: only who asks for a cluster needs it
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        resource = resource_of(self._config.device)
        if resource is None:
            return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=seat.host.node, soft=False)}
        group, bundle = self._held[seat.host.node, seat.number]
        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
        device = {"num_gpus": 1} if resource == "GPU" else {"resources": {resource: 1}}
        return {"scheduling_strategy": strategy, **device}

    async def _reserve(self, host: Host, numbers: Sequence[int]) -> None:
        """Hold the devices of seats on a host, in a placement group. ConfigError if they are not free in time."""
        from ray.util import placement_group  # an extra: only who asks for a cluster needs it

        resource = resource_of(self._config.device)
        assert resource is not None
        there = {"ray.io/node-id": host.node}
        group: Any = placement_group(
            [{resource: 1.0} for _ in numbers], "STRICT_PACK", bundle_label_selector=[there for _ in numbers]
        )
        self._groups.append(group)
        self._held |= {(host.node, number): (group, bundle) for bundle, number in enumerate(numbers)}
        limit_s = self._config.start_timeout_s
        if not await in_thread(lambda: group.wait(limit_s), "stretto-seats"):
            raise ConfigError(
                f"{len(numbers)} of {resource} on host {host.address} were not free after {limit_s:g} s. End what else "
                "uses them, or lower placement.learners or placement.rollers."
            )


def user_places() -> list[str]:
    """The folders in which a worker finds what this process finds beside installed packages: Stretto's own source, and
    the user's modules."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places = [str(Path(__file__).parents[3]), *(place or os.getcwd() for place in sys.path)]
    return [place for place in dict.fromkeys(places) if not _is_installed(Path(place), installed)]


def _is_installed(place: Path, installed: set[str]) -> bool:
    """Whether a worker has it anyway: Python's own, or a folder of packages."""
    return (
        any(place.is_relative_to(known) for known in installed)
        or place.suffix == ".zip"
        or place.name in ("site-packages", "dist-packages")
    )
