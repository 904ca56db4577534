"""The held-out split, the order of draws and the extent of a phase."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.data.order import DrawOrder, Extent, draws_of, split
from stretto.errors import DataError
from stretto.types import Prompt


def prompts(n: int) -> list[Prompt]:
    return [Prompt(uid=f"p{i}", text="x", token_ids=np.ones(1, np.int32)) for i in range(n)]


def uids(part: list[Prompt]) -> list[str]:
    return [p.uid for p in part]


@given(st.integers(4, 200), st.floats(0.15, 0.8), st.integers(0, 2**63 - 1), st.randoms())
def test_split_is_exact_and_independent_of_the_source_order(n: int, share: float, seed: int, rng: random.Random):
    source = prompts(n)
    train, held_out = split(source, share, seed)
    assert len(held_out) == int(share * n + 0.5)
    assert sorted(uids(train) + uids(held_out)) == sorted(uids(source))
    shuffled = source[:]
    rng.shuffle(shuffled)
    again = split(shuffled, share, seed)
    assert (uids(again[0]), uids(again[1])) == (uids(train), uids(held_out))


def test_split_depends_on_the_seed_and_nothing_held_out_is_possible():
    source = prompts(1000)
    first, second = (set(uids(split(source, 0.2, seed)[1])) for seed in (0, 1))
    assert len(first) == len(second) == 200
    assert 10 < len(first & second) < 80
    train, held_out = split(source, 0.0, 0)
    assert len(train) == 1000
    assert held_out == []


def test_a_larger_share_holds_out_a_superset():
    source = prompts(100)
    assert set(uids(split(source, 0.1, 3)[1])) < set(uids(split(source, 0.5, 3)[1]))


def test_split_that_leaves_a_side_empty_is_refused():  # pitfall 12
    with pytest.raises(DataError, match=r"held_out=0\.9 of 2 prompts leaves none to train on"):
        split(prompts(2), 0.9, 0)
    with pytest.raises(DataError, match=r"held_out=0\.2 of 2 prompts is none.*held_out=0"):
        split(prompts(2), 0.2, 0)
    with pytest.raises(DataError, match="leaves none to train on"):
        split([], 0.0, 0)


@given(st.integers(1, 50), st.integers(0, 2**64 - 1), st.integers(0, 30))
def test_every_epoch_draws_every_item_once_and_any_draw_is_addressable(n: int, seed: int, epoch: int):
    order = DrawOrder(n, seed)
    draws = range(epoch * n, (epoch + 1) * n)
    items = [order.item(draw) for draw in draws]
    assert sorted(items) == list(range(n))
    fresh = [DrawOrder(n, seed).item(draw) for draw in reversed(draws)]
    assert fresh[::-1] == items


def test_epochs_and_seeds_differ():
    def epoch(seed: int, index: int) -> tuple[int, ...]:
        order = DrawOrder(64, seed)
        return tuple(order.item(index * 64 + i) for i in range(64))

    # Seeds past 32 bits as well: the words of seed and epoch never run together.
    seeds = (0, 1, 2, 2**32, 2**32 + 1, (2 << 32) + 1, 2**64 - 1)
    assert len({epoch(seed, index) for seed in seeds for index in range(4)}) == len(seeds) * 4


def test_the_order_is_fixed_forever():
    # A change here breaks the resume of every run there is.
    order = DrawOrder(8, 0)
    assert [order.item(d) for d in range(16)] == [3, 2, 1, 6, 0, 7, 4, 5, 7, 6, 4, 5, 3, 1, 0, 2]


def test_the_order_is_uniform():
    counts = np.zeros((6, 6))
    for seed in range(3000):
        order = DrawOrder(6, seed)
        for place in range(6):
            counts[place, order.item(place)] += 1
    assert abs(counts / 3000 - 1 / 6).max() < 0.035


def test_an_order_of_nothing_is_refused():
    with pytest.raises(DataError, match="no prompts to draw from"):
        DrawOrder(0, 0)


@pytest.mark.parametrize(
    ("steps", "epochs", "per_step", "n", "draws", "num_steps"),
    [
        (10, None, 4, 100, 40, 10),
        (None, 1, 4, 10, 10, 3),
        (None, 3, 16, 5, 15, 1),
        (2, 1, 4, 10, 8, 2),
        (100, 1, 4, 10, 10, 3),
        (5, None, 16, 3, 80, 5),
    ],
)
def test_extent(steps: int | None, epochs: int | None, per_step: int, n: int, draws: int, num_steps: int):  # pitfall 12
    assert draws_of(steps, epochs, per_step, n) == Extent(draws=draws, steps=num_steps)


@given(st.integers(1, 50), st.integers(1, 5), st.integers(1, 20))
def test_only_the_last_step_is_smaller(n: int, epochs: int, per_step: int):
    extent = draws_of(None, epochs, per_step, n)
    assert extent.draws == n * epochs
    assert (extent.steps - 1) * per_step < extent.draws <= extent.steps * per_step
