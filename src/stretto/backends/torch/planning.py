"""Which rows of a batch are computed together: packs under a budget of tokens. Pure: knows sizes, no tokens, no Models.

A group stays whole where it fits, since its rows share a prompt. Packs are as few as rows in key order can make, and of
like sizes, since memory goes by the largest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.data.balance import partition

__all__ = ["RowSizes", "plan_packs", "share_rows"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSizes:
    """Of B rows in key order: the group of each, which prompt it has, and the tokens of that and of its own. A pack
    computes a prompt once."""

    groups_B: Numbers
    prompts_B: Numbers
    prompt_tokens_B: Numbers
    own_tokens_B: Numbers

    def of(self, rows: Numbers) -> "RowSizes":
        """Of these rows alone."""
        return RowSizes(
            groups_B=self.groups_B[rows],
            prompts_B=self.prompts_B[rows],
            prompt_tokens_B=self.prompt_tokens_B[rows],
            own_tokens_B=self.own_tokens_B[rows],
        )


def plan_packs(sizes: RowSizes, budget: int, *, whole: bool = False) -> list[list[int]]:
    """The rows of each pack, in order, of at most ``budget`` tokens; a longer unit goes alone.

    A unit, which is not cut, is a group that is within the budget (with ``whole``: any), or a row of another. There are
    as many packs as filling one after the other makes; of all ways to cut that many, the largest pack within the budget
    is smallest.
    """
    units = list(_units(sizes, budget, whole))
    packs = _filled(units, budget)
    if len(packs) > 1:
        # Filling makes the fewest packs for a capacity, so the least capacity that makes no more is found by halving.
        low = max((unit.cost for unit in units if unit.cost <= budget), default=budget)
        high = budget
        while low < high:
            middle = (low + high) // 2
            tried = _filled(units, middle)
            if len(tried) > len(packs):
                low = middle + 1
            else:
                packs, high = tried, middle
    return [[row for unit in pack for row in unit.rows] for pack in packs]


def share_rows(sizes: RowSizes, parts: int, *, whole: bool = False) -> list[list[int]]:
    """The rows, in order, that each of ``parts`` ranks computes: about equally many tokens. Some may get none.

    Groups are shared out whole, or rows where there are fewer groups than ranks (never with ``whole``).
    """
    units = list(_units(sizes, 0, whole=True))
    if len(units) < parts and not whole:
        units = list(_units(sizes, -1, whole=False))
    shares = partition([unit.cost for unit in units], min(parts, len(units))) if units else []
    shares += [[] for _ in range(parts - len(shares))]
    return [[row for place in share for row in units[place].rows] for share in shares]


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    rows: list[int]
    own_tokens: int
    prompts: Mapping[int, int]

    @property
    def cost(self) -> int:
        """Tokens of a pack that has this unit alone."""
        return self.own_tokens + sum(self.prompts.values())


def _units(sizes: RowSizes, budget: int, whole: bool) -> Iterator[_Unit]:
    rows = np.arange(len(sizes.groups_B))
    for group in np.split(rows, np.flatnonzero(np.diff(sizes.groups_B)) + 1) if len(rows) else ():
        unit = _unit(sizes, group)
        if whole or unit.cost <= budget:
            yield unit
        else:
            yield from (_unit(sizes, group[i : i + 1]) for i in range(len(group)))


def _unit(sizes: RowSizes, rows: Numbers) -> _Unit:
    prompts = zip(sizes.prompts_B[rows].tolist(), sizes.prompt_tokens_B[rows].tolist(), strict=True)
    return _Unit(rows.tolist(), int(sizes.own_tokens_B[rows].sum()), dict(prompts))


def _filled(units: Sequence[_Unit], capacity: int) -> list[list[_Unit]]:
    packs: list[list[_Unit]] = []
    used, prompts = 0, set[int]()
    for unit in units:
        new = sum(tokens for prompt, tokens in unit.prompts.items() if prompt not in prompts)
        if not packs or used + unit.own_tokens + new > capacity:
            packs.append([])
            used, prompts, new = 0, set(), unit.cost - unit.own_tokens
        packs[-1].append(unit)
        prompts.update(unit.prompts)
        used += unit.own_tokens + new
    return packs
