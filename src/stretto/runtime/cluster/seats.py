"""Which worker sits on which host of a cluster: a pure function of the hosts, their devices and how many there are.

Hosts are in a fixed order, by address and then by Ray's id of them. Learners come first, in the order of ranks, host by
host until one is full, so that as few hosts as can be take part in what they say to each other; then rollers, each on
the host with most room. Nothing here reserves anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import ConfigError

__all__ = ["Host", "Needs", "Seat", "hosts_of", "resource_of", "take_seats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """``num_devices``: None if workers need none, and there is no limit. ``num_cores``: as Ray counts them."""

    node: str
    address: str
    num_cores: int
    num_devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Workers that need a seat; the rollers include those of evaluations."""

    learners: int
    rollers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker's place: a host, and which of its devices, counted from 0. ``num_beside``: workers on that host."""

    host: Host
    number: int
    num_beside: int

    @property
    def num_threads(self) -> int:
        """A worker's share of the host's cores, at least 1."""
        return max(1, self.host.num_cores // self.num_beside)


def resource_of(device: str) -> str | None:
    """What Ray calls a device; None if workers need none."""
    return {"cpu": None, "gpu": "GPU"}.get(device, device)


def hosts_of(nodes: Sequence[Mapping[str, Any]], device: str) -> tuple[Host, ...]:
    """The hosts that workers can sit on, of what ``ray.nodes`` says, in their order."""
    resource, found = resource_of(device), list[Host]()
    for node in nodes:
        there = node["Resources"]
        host = Host(
            node=node["NodeID"],
            address=node["NodeManagerAddress"],
            num_cores=int(there.get("CPU", 0)),
            num_devices=None if resource is None else int(there.get(resource, 0)),
        )
        if node["Alive"]:
            found.append(host)
    if resource is not None:
        found = [host for host in found if host.num_devices]
    elif any(host.num_cores for host in found):  # a head may have none, so that nothing runs there
        found = [host for host in found if host.num_cores]
    return tuple(sorted(found, key=lambda host: (host.address, host.node)))


def take_seats(hosts: Sequence[Host], needs: Needs, device: str) -> tuple[Seat, ...]:
    """A seat for every learner, then for every roller. ConfigError if there are too few devices."""
    total = needs.learners + needs.rollers
    there = sum(host.num_devices or 0 for host in hosts)
    if not hosts or (hosts[0].num_devices is not None and there < total):
        raise ConfigError(
            f"the workers need {total} devices ({needs.learners} for learners, {needs.rollers} for rollers), and the "
            f"cluster has {there} of {resource_of(device) or 'cpu'} on {len(hosts)} hosts. Lower placement.learners or "
            "placement.rollers, or add hosts to the cluster."
        )
    taken = [0] * len(hosts)
    places: list[tuple[int, int]] = []
    for number in range(total):
        place = _next_to_fill(hosts, taken) if number < needs.learners else _roomiest(hosts, taken)
        places.append((place, taken[place]))
        taken[place] += 1
    return tuple(Seat(host=hosts[place], number=number, num_beside=taken[place]) for place, number in places)


def _room(host: Host) -> int:
    """How many workers fit: by devices, else by cores."""
    return max(1, host.num_cores if host.num_devices is None else host.num_devices)


def _next_to_fill(hosts: Sequence[Host], taken: Sequence[int]) -> int:
    """The first that is not full, or if all are, as they may be where nothing is counted, the roomiest."""
    free = [place for place, host in enumerate(hosts) if taken[place] < _room(host)]
    return free[0] if free else _roomiest(hosts, taken)


def _roomiest(hosts: Sequence[Host], taken: Sequence[int]) -> int:
    """The one with most room left; the first of those. Full ones, where nothing is counted, fill evenly."""
    return max(range(len(hosts)), key=lambda place: (_room(hosts[place]) - taken[place], -place))
