"""Sequences shared out evenly: in a given number of parts, or in as few bins as a capacity allows. Pure.

Lengths may be any costs of 0 or more. The same lengths give the same parts. Owns no tokens: callers pass indices on.
"""

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.errors import DataError

__all__ = ["pack_bins", "partition"]

Parts = list[list[int]]
Costs = NDArray[np.float64]
Indices = NDArray[np.int64]

_SHARED_ANEW = 512
"""Sequences of two parts up to which they are shared out anew."""


def partition(lengths: Sequence[float], k: int, *, equal_size: bool = False) -> Parts:
    """The indices of ``lengths`` in ``k`` parts, none empty, whose largest sum is small; with ``equal_size`` their
    counts differ by one at most.

    The better of largest differencing (Karmarkar and Karp 1982) and largest-first greedy, improved between the largest
    part and another for as long as that helps. DataError if there are fewer sequences than parts.
    """
    costs = np.asarray(lengths, np.float64)
    if not 1 <= k <= len(costs):
        raise DataError(
            f"{len(costs)} sequences cannot make {k} parts, none of which is empty. Ask for 1 to {len(costs)} parts."
        )
    # The least that any partition can have as its largest sum; whole numbers have whole sums.
    even = float(costs.sum()) / k
    floor = max(math.ceil(even) if (costs == np.floor(costs)).all() else even, float(costs.max()))
    best: tuple[float, Parts] | None = None
    for start in (_differencing, _greedy):
        parts = _improved(costs, _filled(costs, start(costs, k, equal_size)), floor, equal_size)
        largest = max(float(costs[part].sum()) for part in parts)
        if best is None or largest < best[0]:
            best = largest, parts
    assert best is not None
    return sorted(sorted(part) for part in best[1])


def pack_bins(lengths: Sequence[float], capacity: float) -> Parts:
    """The indices of ``lengths`` in few bins whose sums are at most ``capacity``: first fit, longest first.

    At most 11/9 of the fewest possible and 2/3 (Dosa 2007). DataError for a sequence longer than a bin.
    """
    costs = np.asarray(lengths, np.float64)
    if len(costs) and costs.max() > capacity:
        raise DataError(
            f"a sequence of {costs.max():g} does not fit a bin of {capacity:g}. Raise the capacity, or leave it out."
        )
    bins: Parts = []
    free = np.zeros(len(costs))
    for index in _longest_first(costs):
        place = int(np.argmax(free[: len(bins)] >= costs[index])) if bins else 0
        if not bins or free[place] < costs[index]:
            place = len(bins)
            bins.append([])
            free[place] = capacity
        bins[place].append(index)
        free[place] -= costs[index]
    return [sorted(each) for each in bins]


def _longest_first(costs: Costs) -> list[int]:
    return [int(index) for index in np.argsort(-costs, kind="stable")]


def _differencing(costs: Costs, k: int, equal_size: bool) -> Parts:
    """Partial partitions, the two of the widest spread merged at a time, the largest part of one with the smallest of
    the other. For equal sizes each begins with k sequences of like length (of which one may lack some), one a part."""
    order = _longest_first(costs)
    chunk = k if equal_size else 1
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for number, start in enumerate(range(0, len(order), chunk)):
        parts = [(float(costs[i]), [i]) for i in order[start : start + chunk]]
        parts += [(0.0, []) for _ in range(k - len(parts))]
        heap.append((parts[-1][0] - parts[0][0], number, parts))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        (*_, one), (*_, other) = heapq.heappop(heap), heapq.heappop(heap)
        merged = [(a + b, x + y) for (a, x), (b, y) in zip(one, reversed(other), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], number, merged))
        number += 1
    return [indices for _, indices in heap[0][2]]


def _greedy(costs: Costs, k: int, equal_size: bool) -> Parts:
    """Each sequence, longest first, to the smallest part that has room for it."""
    parts: Parts = [[] for _ in range(k)]
    size, larger = divmod(len(costs), k)
    open_parts = [(0.0, part) for part in range(k)]
    for index in _longest_first(costs):
        total, part = heapq.heappop(open_parts)
        while equal_size and len(parts[part]) == size and not larger:
            total, part = heapq.heappop(open_parts)
        parts[part].append(index)
        larger -= len(parts[part]) > size
        if not equal_size or len(parts[part]) <= size:
            heapq.heappush(open_parts, (total + float(costs[index]), part))
    return parts


def _filled(costs: Costs, parts: Parts) -> Parts:
    """``parts`` with the shortest sequence of a part that has several in each that has none."""
    for part in parts:
        if not part:
            donor = max((p for p in parts if len(p) > 1), key=lambda p: float(costs[p].sum()))
            shortest = min(donor, key=lambda i: (costs[i], i))
            donor.remove(shortest)
            part.append(shortest)
    return parts


def _improved(costs: Costs, parts: Parts, floor: float, equal_size: bool) -> Parts:
    """``parts`` after exchanges between the largest and another, or sharing out both anew, while the larger sum of the
    two falls."""
    groups = [np.asarray(part, np.int64) for part in parts]
    sums = np.asarray([costs[group].sum() for group in groups])
    for _ in range(len(costs)):
        top = int(sums.argmax())
        if sums[top] <= floor:
            break
        found = _exchange(costs, groups, sums, top, equal_size) or _share_anew(costs, groups, sums, top, equal_size)
        if found is None:
            break
        other, groups[top], groups[other] = found
        for changed in (top, other):
            sums[changed] = costs[groups[changed]].sum()
    return [group.tolist() for group in groups]


def _exchange(
    costs: Costs, groups: list[Indices], sums: Costs, top: int, equal_size: bool
) -> tuple[int, Indices, Indices] | None:
    """The best exchange of a sequence of ``top`` for a shorter one of another part, or for none unless sizes are to
    stay: the other part, and what both are then. None if the larger sum cannot fall."""
    best: tuple[float, int, int, int] | None = None
    for other in range(len(groups)):
        found = _best_exchange(costs, groups[top], groups[other], sums[top] - sums[other], not equal_size)
        if other != top and found is not None and (best is None or found[0] > best[0]):
            best = found[0], other, found[1], found[2]
    if best is None:
        return None
    _, other, give, take = best
    given = groups[top][give : give + 1]
    if take < 0:
        return other, np.delete(groups[top], give), np.append(groups[other], given)
    taken = groups[other][take : take + 1]
    return other, np.append(np.delete(groups[top], give), taken), np.append(np.delete(groups[other], take), given)


def _share_anew(
    costs: Costs, groups: list[Indices], sums: Costs, top: int, equal_size: bool
) -> tuple[int, Indices, Indices] | None:
    """As ``_exchange``, with the sequences of both parts shared out by differencing: it finds what takes several
    exchanges at once. Not for many sequences, which are even enough."""
    for place in np.argsort(sums, kind="stable")[:-1]:
        other = int(place)
        both = np.sort(np.append(groups[top], groups[other]))
        if other == top or len(both) > _SHARED_ANEW:
            continue
        one, two = (both[part] for part in _filled(costs[both], _differencing(costs[both], 2, equal_size)))
        if max(costs[one].sum(), costs[two].sum()) < sums[top]:
            return other, one, two
    return None


def _best_exchange(
    costs: Costs, top: Indices, other: Indices, gap: float, moves: bool
) -> tuple[float, int, int] | None:
    """How much the larger sum falls, and which places of ``top`` and ``other`` (-1: none) are exchanged; None if it
    cannot fall. What moves is best half the ``gap`` between the sums."""
    order = np.argsort(costs[other], kind="stable")
    there = costs[other][order]
    wanted = np.searchsorted(there, costs[top] - gap / 2)
    best: tuple[float, int, int] | None = None
    for near in (wanted - 1, wanted):
        inside = (near >= 0) & (near < len(there))
        near = np.clip(near, 0, len(there) - 1)
        moved = costs[top] - there[near]
        gain = np.where(inside, np.minimum(moved, gap - moved), 0.0)
        give = int(gain.argmax())
        if gain[give] > 0 and (best is None or gain[give] > best[0]):
            best = float(gain[give]), give, int(order[near[give]])
    if moves and len(top) > 1:
        gain = np.minimum(costs[top], gap - costs[top])
        give = int(gain.argmax())
        if gain[give] > 0 and (best is None or gain[give] > best[0]):
            best = float(gain[give]), give, -1
    return best
