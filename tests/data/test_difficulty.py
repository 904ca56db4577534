"""From easy to hard: which prompts a way holds, and how far they stray."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.config.orders import DifficultyOrder
from stretto.data.difficulty import DifficultyDraws, levels_of
from stretto.data.order import DrawOrder
from stretto.errors import DataError
from stretto.types import Prompt

levels = st.lists(st.integers(0, 5), min_size=1, max_size=40)
seeds = st.integers(0, 2**64 - 1)


def prompt(**data: object) -> Prompt:
    return Prompt(uid="p", text="x", token_ids=np.ones(1, np.int32), data=data)


@given(levels, seeds, st.floats(0.01, 3.0), st.floats(0.0, 2.0))
def test_the_way_holds_what_the_shuffled_order_draws_and_then_it_goes_on(levels, seed, passes, spread):
    shuffled = DrawOrder(len(levels), seed)
    draws = DifficultyDraws(shuffled, np.array(levels, float), passes=passes, spread=spread)
    way = max(1, round(passes * len(levels)))
    taken = [draws.item(d) for d in range(way + 2 * len(levels))]
    assert sorted(taken[:way]) == sorted(shuffled.item(d) for d in range(way))
    assert taken[way:] == [shuffled.item(d) for d in range(way, way + 2 * len(levels))]


@given(levels, seeds, st.floats(0.01, 3.0), st.floats(0.0, 1.0))
def test_prompts_stray_as_far_as_the_spread_and_no_farther(levels, seed, passes, spread):
    def way(spread: float) -> list[int]:
        draws = DifficultyDraws(DrawOrder(n, seed), np.array(levels, float), passes=passes, spread=spread)
        return [draws.item(d) for d in range(length)]

    n = len(levels)
    length = max(1, round(passes * n))
    strict, strayed = way(0.0), way(spread)
    assert [levels[item] for item in strict] == sorted(levels[item] for item in strict)
    for item in set(strict):
        for one, other in zip(places(strict, item), places(strayed, item), strict=True):
            assert abs(one - other) <= spread * length + 1


def places(items: list[int], item: int) -> list[int]:
    return [place for place, found in enumerate(items) if found == item]


def test_levels_are_numbers_or_texts_of_numbers():
    order = DifficultyOrder(key="level")
    assert levels_of([prompt(level=2), prompt(level=0.5), prompt(level="3")], order).tolist() == [2.0, 0.5, 3.0]
    easier = DifficultyOrder(key="level", larger_is="easier")
    assert levels_of([prompt(level=0.1), prompt(level=0.9)], easier).tolist() == [-0.1, -0.9]


@pytest.mark.parametrize("value", ["Level 3", None, True, [1], "nan", 10**400])
def test_what_is_no_number_is_refused_with_the_prompt(value):
    with pytest.raises(DataError, match=r"order\.key=level sorts by a number, and prompt 'p' has"):
        levels_of([prompt(level=1), prompt(level=value)], DifficultyOrder(key="level"))


def test_a_column_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(DataError, match=r"order\.key=level is not in the data.*Did you mean 'levels'"):
        levels_of([prompt(levels=1)], DifficultyOrder(key="level"))
