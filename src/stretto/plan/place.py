"""Where Models sit: role groups on devices, in proportion to what they cost, within what devices hold. Pure.

A *role group* is one Model in one part: what trains and scores it (``learn``), or its engines (``generate``). Each gets
devices of its own. Rules, in their order: what is fixed by hand; at least the devices that its memory takes, and one;
shares of the devices in proportion to cost, by largest remainder; whole hosts first, the largest group first; the
tensor ranks of an engine inside one host, unless it is larger; where devices differ in speed, one more or less where
that evens out times. Of memory each device is taken to have what the smallest has. The same input gives the same
placement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

from stretto.errors import ConfigError
from stretto.plan.cluster import Cluster, Layout
from stretto.plan.sizes import show_bytes

__all__ = ["Placement", "RoleGroup", "Seat", "place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGroup:
    """What is to be placed. ``cost``: seconds of a step that it would take a device of 1 FLOP/s (any common unit does).

    ``shared_bytes`` are divided over the ranks that hold one copy (the shards of a trainer, the tensor ranks of an
    engine), ``rank_bytes`` each rank needs. ``most_tensor``: over how many ranks an engine's products may be split.
    ``devices``: how many it gets, if that is fixed by hand.
    """

    model: str
    part: Literal["learn", "generate"]
    cost: float
    shared_bytes: int
    rank_bytes: int = 0
    most_tensor: int = 1
    devices: int | None = None

    @property
    def name(self) -> str:
        """As it is shown."""
        return f"{self.model} ({'training' if self.part == 'learn' else 'rollout'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The ranks of a role group, in the order of its layout, and how it lies on them."""

    group: RoleGroup
    ranks: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where every role group sits; devices that nobody uses; and what is to be said about it."""

    seats: tuple[Seat, ...]
    idle: tuple[int, ...]
    notes: tuple[str, ...]

    def seat(self, model: str, part: str) -> Seat:
        """That of a role group."""
        return next(seat for seat in self.seats if (seat.group.model, seat.group.part) == (model, part))


def place(cluster: Cluster, groups: Sequence[RoleGroup]) -> Placement:
    """The placement of ``groups``, each once. ConfigError with the numbers if it cannot be."""
    free = _Free(cluster)
    units = {group.name: _unit(group, free.smallest_bytes) for group in groups}
    counts = _counts(groups, units, len(cluster.devices))
    notes: list[str] = []
    seats: dict[str, Seat] = {}
    largest_first = sorted(groups, key=lambda g: (-counts[g.name], -g.cost, g.name))
    taken = {group.name: free.take(counts[group.name], units[group.name]) for group in largest_first}
    taken = _evened(cluster, groups, units, taken)
    for group in groups:
        ranks = tuple(sorted(taken[group.name])) if group.part == "learn" else taken[group.name]  # shards host by host
        if units[group.name] > 1 and group.part == "generate" and _crosses(cluster, ranks, units[group.name]):
            notes.append(f"{group.name}: its {units[group.name]} tensor ranks lie on several hosts, which is slow.")
        seats[group.name] = Seat(group=group, ranks=ranks, layout=_layout(cluster, group, ranks, units[group.name]))
    used = {rank for seat in seats.values() for rank in seat.ranks}
    idle = tuple(rank for rank in range(len(cluster.devices)) if rank not in used)
    if idle:
        notes.append(f"{len(idle)} of {len(cluster.devices)} devices are left over: {_few(idle)}.")
    return Placement(seats=tuple(seats.values()), idle=idle, notes=tuple(notes))


def _unit(group: RoleGroup, device_bytes: int) -> int:
    """The fewest ranks over which one copy fits. ConfigError if none do."""
    room = device_bytes - group.rank_bytes
    if room <= 0:
        raise ConfigError(
            f"{group.name} needs {show_bytes(group.rank_bytes)} on every device beside its weights, and the smallest "
            f"has {show_bytes(device_bytes)}. Use smaller micro-batches or fewer engine.slots, or larger devices."
        )
    least = max(1, ceil(group.shared_bytes / room))
    if group.part == "learn":
        return least
    fitting = [n for n in range(least, group.most_tensor + 1) if group.most_tensor % n == 0]
    if not fitting:
        raise ConfigError(
            f"{group.name} needs {show_bytes(group.shared_bytes)}, which takes {least} devices of "
            f"{show_bytes(device_bytes)}, and its products can be split over {group.most_tensor} at most. Use larger "
            "devices, engine.dtype=bfloat16, or fewer engine.slots."
        )
    return fitting[0]


def _counts(groups: Sequence[RoleGroup], units: Mapping[str, int], there: int) -> dict[str, int]:
    """Devices of every group: what is fixed, then the least, then shares by largest remainder in whole engines."""
    fixed = {g.name: g.devices for g in groups if g.devices is not None}
    for group in groups:
        wrong = group.devices is not None and (
            group.devices < units[group.name] or (group.part == "generate" and group.devices % units[group.name])
        )
        if wrong:
            raise ConfigError(
                f"{group.name} is given {group.devices} devices, and one copy of it takes {units[group.name]}. Give it "
                f"a multiple of {units[group.name]}."
            )
    loose = [g for g in groups if g.name not in fixed]
    least = sum(units[g.name] for g in loose)
    left = there - sum(fixed.values())
    if left < least:
        needs = ", ".join(f"{g.name} {fixed.get(g.name, units[g.name])}" for g in groups)
        raise ConfigError(
            f"the Models need {least + sum(fixed.values())} devices at least ({needs}), and there are {there}. Use "
            "more or larger devices, smaller models, or let them take turns (offload)."
        )
    return {**fixed, **_shares(loose, units, left)}


def _shares(groups: Sequence[RoleGroup], units: Mapping[str, int], there: int) -> dict[str, int]:
    """``there`` devices in proportion to cost, each at least its unit; what a group cannot use in whole engines goes to
    the others."""
    counts: dict[str, int] = {}
    open_groups: list[RoleGroup] = list(groups)
    left = there
    quota: dict[str, float] = {}
    while open_groups:  # who would get less than the least gets that, and the others share what is left
        total = sum(g.cost for g in open_groups)
        quota = {g.name: left * (g.cost / total if total else 1 / len(open_groups)) for g in open_groups}
        small = [g for g in open_groups if quota[g.name] < units[g.name]]
        if not small:
            break
        for group in small:
            counts[group.name] = units[group.name]
        open_groups = [g for g in open_groups if g not in small]
        left = there - sum(counts.values())
    steps = {g.name: units[g.name] if g.part == "generate" else 1 for g in open_groups}
    for group in open_groups:
        counts[group.name] = floor(quota[group.name] / steps[group.name]) * steps[group.name]
    spare = left - sum(counts[g.name] for g in open_groups)
    order = sorted(open_groups, key=lambda g: (counts[g.name] - quota[g.name], -g.cost, g.name))
    for group in (*order, *order):
        if 0 < steps[group.name] <= spare:
            counts[group.name] += steps[group.name]
            spare -= steps[group.name]
    return counts


def _evened(
    cluster: Cluster, groups: Sequence[RoleGroup], units: Mapping[str, int], taken: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Devices of different speed: one after the other goes from whoever would be done first to whoever is done last, as
    long as that is sooner for the later of the two."""
    found = {name: list(ranks) for name, ranks in taken.items()}
    speed = [device.flops for device in cluster.devices]
    loose = [g for g in groups if g.devices is None and units[g.name] == 1]
    if len(set(speed)) == 1 or len(loose) < 2:
        return dict(taken)
    power = {g.name: sum(speed[rank] for rank in found[g.name]) for g in loose}
    for _ in cluster.devices:
        times = {g.name: g.cost / power[g.name] for g in loose}
        late = max(loose, key=lambda g: times[g.name])
        givers = [g for g in loose if g is not late and len(found[g.name]) > 1]
        moves = [
            (max(late.cost / (power[late.name] + speed[rank]), g.cost / (power[g.name] - speed[rank])), g.name, rank)
            for g in givers
            for rank in {speed[rank]: rank for rank in found[g.name]}.values()  # one of each kind
        ]
        if not moves or min(moves)[0] >= times[late.name]:
            break
        _, giver, rank = min(moves)
        found[giver].remove(rank)
        found[late.name].append(rank)
        power[giver] -= speed[rank]
        power[late.name] += speed[rank]
    return {name: tuple(sorted(ranks)) for name, ranks in found.items()}


class _Free:
    """The devices that nobody has yet, host by host."""

    def __init__(self, cluster: Cluster) -> None:
        self._hosts: list[list[int]] = [[] for _ in cluster.hosts]
        for rank, host in enumerate(cluster.host_of):
            self._hosts[host].append(rank)
        self.smallest_bytes = min(device.memory_bytes for device in cluster.devices)

    def take(self, count: int, unit: int) -> tuple[int, ...]:
        """``count`` devices: whole hosts first, then as many as are left from the host that fits them best. In each
        host a multiple of ``unit`` as long as that is possible."""
        taken: list[int] = []
        while len(taken) < count:
            want = count - len(taken)
            whole = [host for host in self._hosts if host and len(host) <= want]
            usable = [host for host in whole if len(host) >= unit] or whole
            if usable:
                host = max(usable, key=len)  # the first of the largest
                number = len(host) // unit * unit or len(host)
            else:
                host = min((host for host in self._hosts if host), key=len)  # the smallest that has enough
                number = want
            taken += host[:number]
            del host[:number]
        return tuple(taken)


def _layout(cluster: Cluster, group: RoleGroup, ranks: tuple[int, ...], unit: int) -> Layout:
    """Engines of ``unit`` tensor ranks; trainers in shards, in copies of whole hosts where one copy fits into a host
    and there are several, all of the same size."""
    if group.part == "generate":
        return Layout(replicas=len(ranks) // unit, tensor=unit)
    hosts: dict[int, int] = {}
    for rank in ranks:
        hosts[cluster.host_of[rank]] = hosts.get(cluster.host_of[rank], 0) + 1
    sizes = set(hosts.values())
    if len(hosts) > 1 and len(sizes) == 1 and min(sizes) >= unit:
        return Layout(replicas=len(hosts), shards=min(sizes))
    return Layout(shards=len(ranks))


def _crosses(cluster: Cluster, ranks: Sequence[int], unit: int) -> bool:
    engines = [ranks[start : start + unit] for start in range(0, len(ranks), unit)]
    return any(len({cluster.host_of[rank] for rank in engine}) > 1 for engine in engines)


def _few(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, ..." if len(ranks) > 8 else shown
