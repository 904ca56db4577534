"""Which process groups training needs: one for each distinct set of ranks that compute together, in one order.

Engines are no ranks of training. Every rank makes all groups, member or not, in this order, since making one takes all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.plan.cluster import Layout

__all__ = ["ProcessGroup", "process_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Ranks of the training world that talk to each other, and what for (``policy``, ``policy shard 1``, ...)."""

    name: str
    ranks: tuple[int, ...]


def process_groups(seats: Mapping[str, tuple[Sequence[int], Layout]]) -> list[ProcessGroup]:
    """Of Models that are trained or scored, by name: where they sit (ranks of the training world, in the order of the
    layout: tensor fastest, then context, shards, replicas), and how they lie there.

    First the whole of each Model, then the groups along each axis of its layout that is longer than 1.
    """
    found: dict[tuple[int, ...], str] = {}
    for model, (ranks, layout) in sorted(seats.items()):
        assert len(ranks) == layout.size, (model, ranks, layout)
        found.setdefault(tuple(ranks), model)
    for model, (ranks, layout) in sorted(seats.items()):
        for axis, length, stride in _axes(layout):
            if length == 1 or length == layout.size:
                continue
            starts = [at for at in range(layout.size) if (at // stride) % length == 0]
            for number, start in enumerate(starts):
                members = tuple(ranks[start + step * stride] for step in range(length))
                found.setdefault(members, f"{model} {axis} {number}")
    return [ProcessGroup(name=name, ranks=ranks) for ranks, name in found.items()]


def _axes(layout: Layout) -> list[tuple[str, int, int]]:
    """(name, length, distance between neighbours) of each."""
    t, c, s = layout.tensor, layout.context, layout.shards
    return [("tensor", t, 1), ("context", c, t), ("shard", s, t * c), ("replica", layout.replicas, t * c * s)]
