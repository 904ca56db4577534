"""Packs: nothing lost or twice, within the budget, groups whole, few, and of like sizes. Against trying every cut."""

from itertools import chain, combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.torch.planning import RowSizes, plan_packs


def sizes_of(groups):
    """Groups as lists of (prompt, its tokens, own tokens)."""
    rows = [(g, *row) for g, group in enumerate(groups) for row in group]
    columns = np.asarray(rows, np.int64).reshape(-1, 4).T
    return RowSizes(groups_B=columns[0], prompts_B=columns[1], prompt_tokens_B=columns[2], own_tokens_B=columns[3])


def cost(sizes, rows):
    prompts = {int(sizes.prompts_B[r]): int(sizes.prompt_tokens_B[r]) for r in rows}
    return sum(prompts.values()) + int(sizes.own_tokens_B[list(rows)].sum())


@st.composite
def groups(draw, most=5):
    """Some prompts return in another group, and some groups have several."""
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    row = st.builds(lambda p, own: (p, lengths[p], own), st.integers(0, len(lengths) - 1), st.integers(0, 20))
    return draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=most))


@settings(max_examples=300, deadline=None)
@given(given_groups=groups(), budget=st.integers(1, 150), whole=st.booleans())
def test_packs_keep_the_law(given_groups, budget, whole):
    sizes = sizes_of(given_groups)
    packs = plan_packs(sizes, budget, whole=whole)
    assert [row for pack in packs for row in pack] == list(range(len(sizes.groups_B))), "all, once, in order"
    of_group = [np.flatnonzero(sizes.groups_B == g).tolist() for g in range(len(given_groups))]
    units = [
        unit
        for group in of_group
        for unit in ([group] if whole or cost(sizes, group) <= budget else [[row] for row in group])
    ]
    for pack in packs:
        assert cost(sizes, pack) <= budget or pack in units
    for unit in units:
        assert sum(set(unit) <= set(pack) for pack in packs) == 1, "units are whole"
    # No cut of the same units that keeps the budget is into fewer packs, or as many with a smaller largest one.
    assert (len(packs), _largest([cost(sizes, pack) for pack in packs], budget)) == _best(sizes, units, budget)


def _best(sizes, units, budget):
    for count in range(1, len(units) + 1):
        found = []
        for cuts in combinations(range(1, len(units)), count - 1):
            parts = [units[a:b] for a, b in pairwise([0, *cuts, len(units)])]
            costs = [cost(sizes, list(chain(*part))) for part in parts]
            if all(c <= budget or len(part) == 1 for c, part in zip(costs, parts, strict=True)):
                found.append(_largest(costs, budget))
        if found:
            return count, min(found)
    raise AssertionError("one unit a pack is always allowed")


def _largest(costs, budget):
    return max((c for c in costs if c <= budget), default=0)


def test_by_hand():
    one = [(0, 10, 5)] * 4  # 30 tokens
    sizes = sizes_of([one, [(1, 10, 5)] * 4, [(2, 10, 5)] * 4, [(3, 10, 5)] * 4])
    # filling 90 would make packs of 90 and 30
    assert plan_packs(sizes, 90) == [list(range(8)), list(range(8, 16))]
    # a group alone over the budget is cut by row, and its prompt is computed in both
    assert plan_packs(sizes_of([one]), 25) == [[0, 1], [2, 3]]
    assert plan_packs(sizes_of([one]), 25, whole=True) == [[0, 1, 2, 3]]
    # the same prompt in two groups is computed once
    assert plan_packs(sizes_of([one, one]), 50) == [list(range(8))]


@pytest.mark.parametrize("budget", [1, 10**9])
def test_nothing_makes_no_pack(budget):
    assert plan_packs(sizes_of([]), budget) == []
