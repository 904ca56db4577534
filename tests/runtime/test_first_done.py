"""Laws of the pool that takes what ends first, over random delays, drops, ends of data and restarts."""

import asyncio
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import PoolError
from stretto.plane.local import LocalPlane
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped
from stretto.runtime.first_done import FirstDonePool
from stretto.runtime.pool import PoolConfig
from stretto.testing import make_group


class Plant:
    """Makes groups after random delays, stamped with the version that was published when they began; drops some."""

    def __init__(self, seed: int, drops: frozenset[int], slowest: int = 40) -> None:
        self.random, self.drops, self.slowest, self.version = random.Random(seed), drops, slowest, 0
        self.pool: FirstDonePool | None = None
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.given_up: list[int] = []
        self.started: list[int] = []

    def start(self, draw: int) -> None:
        self.started.append(draw)
        self.tasks[draw] = asyncio.get_running_loop().create_task(self.make(draw))

    def give_up(self, draw: int, why: Dropped) -> None:
        assert why.kind == "left"
        self.given_up.append(draw)
        self.tasks[draw].cancel()

    async def make(self, draw: int) -> None:
        version, pool = self.version, self.pool
        assert pool is not None
        for _ in range(self.random.randrange(self.slowest)):
            await asyncio.sleep(0)
        if draw in self.drops:
            try:
                pool.drop(draw, Dropped(kind="failed", why="told to"))
            except PoolError as failure:
                pool.fail(failure)
        elif not pool.accepts(draw):
            pool.drop(draw, Dropped(kind="left", why="enough"))
        else:
            pool.finish(Drawn.of(draw, {"g": make_group(draw, version=version)}, LocalPlane()))


def config(**changes: object) -> PoolConfig:
    base = {"groups_per_step": 3, "max_staleness": 0, "deterministic": False, "max_refills": 50, "steps": 6}
    base |= {"total_draws": None, "over_sample": 2.0, "rest": "abort"}
    return PoolConfig(**{**base, **changes})  # type: ignore[arg-type]


async def drive(plant: Plant, cfg: PoolConfig, stops: frozenset[int] = frozenset()) -> list[list[int]]:
    """As the driver: take, then publish; at a stop the pool is saved, its tasks end, and a new one goes on."""
    pool = plant.pool = FirstDonePool(cfg, plant.start, plant.give_up)
    taken: list[list[int]] = []
    pool.admit(0)
    while (found := await pool.take()) is not None:
        step = len(taken)
        for drawn in found.drawn:
            assert drawn.oldest_version is not None
            assert step - drawn.oldest_version <= cfg.max_staleness, (step, drawn.draw)
        taken.append([drawn.draw for drawn in found.drawn])
        assert taken[-1] == sorted(taken[-1])
        plant.version = step + 1
        if step in stops:
            state, finished = json.loads(json.dumps(pool.state())), pool.finished()
            for task in plant.tasks.values():
                task.cancel()
            pool = plant.pool = FirstDonePool(cfg, plant.start, plant.give_up)
            pool.restore(state, finished)
        pool.admit(step + 1)
    assert pool.ended and pool.consumed + len(pool.state()["dropped"]) == len(set(plant.started))
    for task in plant.tasks.values():
        task.cancel()
    return taken


CASES = {
    "seed": st.integers(0, 10**6),
    "drops": st.frozensets(st.integers(0, 40), max_size=8),
    "groups": st.integers(1, 4),
    "total": st.none() | st.integers(1, 30),
}


@settings(max_examples=150, deadline=None)
@given(**CASES, lag=st.integers(1, 4), part=st.floats(0.05, 1), stops=st.frozensets(st.integers(0, 5), max_size=2))
def test_what_goes_on_is_taken_once_and_never_too_late(seed, drops, groups, total, lag, part, stops):
    factor = 1 + part * lag
    cfg = config(groups_per_step=groups, max_staleness=lag, over_sample=factor, rest="carry", total_draws=total)
    plant = Plant(seed, drops)
    taken = asyncio.run(drive(plant, cfg, stops))
    flat = [draw for step in taken for draw in step]
    assert len(flat) == len(set(flat)) and not set(flat) & drops and not plant.given_up
    assert all(len(step) == groups for step in taken[:-1])
    if total is None:
        assert [len(step) for step in taken] == [groups] * 6
    else:
        assert len(taken) == 6 or set(flat) == set(range(total)) - drops


@settings(max_examples=100, deadline=None)
@given(**CASES, factor=st.floats(1.05, 4))
def test_what_is_not_waited_for_is_given_up(seed, drops, groups, total, factor):
    plant = Plant(seed, drops)
    taken = asyncio.run(drive(plant, config(groups_per_step=groups, over_sample=factor, total_draws=total)))
    flat = [draw for step in taken for draw in step]
    assert len(flat) == len(set(flat)) and not set(flat) & (drops | set(plant.given_up))
    assert all(len(step) == groups for step in taken[:-1])
    assert total is not None or len(taken) == 6


def test_a_step_takes_those_that_end_first():
    class Slow(Plant):
        async def make(self, draw):
            for _ in range(100 if draw in (0, 1) else 1):
                await asyncio.sleep(0)
            self.pool.finish(Drawn.of(draw, {"g": make_group(draw, version=self.version)}, LocalPlane()))

    plant = Slow(0, frozenset())
    assert asyncio.run(drive(plant, config(steps=1, over_sample=5 / 3))) == [[2, 3, 4]]
    assert sorted(plant.given_up) == [0, 1]


def test_draws_that_are_dropped_again_and_again_end_the_run():
    plant = Plant(0, frozenset(range(1000)))
    with pytest.raises(PoolError, match="Step 0 could not be filled"):
        asyncio.run(drive(plant, config(max_refills=2)))
