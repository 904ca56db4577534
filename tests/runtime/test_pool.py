"""Laws of the pool, over random delays, drops, stops and restarts."""

import asyncio
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.config.by_step import ByStep, value_at
from stretto.errors import PoolError
from stretto.plane.local import LocalPlane
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import DropKind, Dropped
from stretto.runtime.pool import Pool, PoolConfig
from stretto.testing import make_group


class Plant:
    """Makes groups after random delays; drops some; stamps the version that was published while the draw ran."""

    kind: DropKind = "failed"

    def __init__(self, *, seed: int, drops: frozenset[int], drains: bool = True) -> None:
        self.random, self.drops, self.version = random.Random(seed), drops, 0
        self.drains, self.slowest = drains, 4 if drains else 40
        self.pool: Pool | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.started: list[int] = []
        self.dropped: list[int] = []

    def start(self, draw: int) -> None:
        self.started.append(draw)
        task = asyncio.get_running_loop().create_task(self.make(draw))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def make(self, draw: int) -> None:
        version = self.version
        for _ in range(self.random.randrange(self.slowest)):
            await asyncio.sleep(0)
        assert self.pool is not None
        assert version == self.version or not self.drains, "weights changed while a draw was running"
        if draw in self.drops:
            try:
                self.pool.drop(draw, Dropped(kind=self.kind, why="told to", scores={"": (0.25, 0.25)}))
            except PoolError as failure:  # as the runner does
                self.pool.fail(failure)
        else:
            self.pool.finish(Drawn.of(draw, {"g": make_group(draw, version=version)}, LocalPlane()))


def config(**changes: object) -> PoolConfig:
    base = {
        "groups_per_step": 3,
        "max_staleness": 0,
        "deterministic": True,
        "max_refills": 50,
        "steps": 6,
        "total_draws": None,
    }
    return PoolConfig(**{**base, **changes})  # type: ignore[arg-type]


async def run(plant: Plant, cfg: PoolConfig, stop_at: int | None = None) -> tuple[list[list[int]], str | None, Pool]:
    """Drive a pool as the driver does; stop (and give its state) at a window if asked."""
    pool = plant.pool = Pool(cfg, plant.start)
    taken: list[list[int]] = []
    pool.admit(0)
    while (wave := await pool.take()) is not None:
        drawn, step = wave.drawn, len(taken)
        assert list(wave.dropped) == sorted(wave.dropped) and set(wave.dropped) <= plant.drops
        assert all(
            d == Dropped(kind=plant.kind, why="told to", scores={"": (0.25, 0.25)}) for d in wave.dropped.values()
        )
        plant.dropped += list(wave.dropped)
        assert all(step - d.oldest_version <= cfg.max_staleness for d in drawn)
        taken.append([d.draw for d in drawn])
        if plant.drains:
            await pool.drained()
        plant.version = step + 1
        if stop_at == step + 1:
            return taken, json.dumps(pool.state()), pool
        pool.admit(step + 1)
    return taken, None, pool


drops_of = st.frozensets(st.integers(0, 40), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    drops=drops_of,
    staleness=st.sampled_from([0, 1]),
    deterministic=st.booleans(),
    groups=st.integers(1, 5),
    steps=st.one_of(st.none(), st.integers(1, 6)),
    total=st.integers(1, 40),
)
def test_every_draw_ends_once_and_the_bound_holds(seed, drops, staleness, deterministic, groups, steps, total):
    cfg = config(
        groups_per_step=groups, max_staleness=staleness, deterministic=deterministic, steps=steps, total_draws=total
    )
    plant = Plant(seed=seed, drops=drops)
    taken, _, _ = asyncio.run(run(plant, cfg))
    flat = [d for wave in taken for d in wave]
    assert plant.started == list(range(len(plant.started)))  # draws are admitted in order, none twice
    assert sorted(flat) == [d for d in plant.started if d not in drops]  # nothing lost, nothing trained twice
    assert all(wave == sorted(wave) for wave in taken)
    assert all(len(wave) == groups for wave in taken[:-1])  # only the last step may be smaller
    if steps is None:
        assert len(plant.started) == total
    elif len(plant.started) < total:  # the data has no end: as many draws as are wanted and as were dropped
        assert len(plant.started) == steps * groups + len(plant.dropped)
        assert sorted(plant.dropped) == [d for d in plant.started if d in drops]
    else:
        assert len(taken) <= steps


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    drops=drops_of,
    staleness=st.integers(1, 4),
    groups=st.integers(1, 5),
    total=st.one_of(st.none(), st.integers(1, 40)),
    stops=st.lists(st.integers(1, 6), max_size=3),
)
def test_the_bound_holds_for_what_is_in_flight_when_weights_change(seed, drops, staleness, groups, total, stops):
    """Also after stops, where what was under way begins again; nothing is lost and nothing trained twice."""
    # pitfalls 5, 7, 9
    cfg = config(groups_per_step=groups, max_staleness=staleness, deterministic=False, total_draws=total)

    async def main() -> list[list[int]]:
        plant = Plant(seed=seed, drops=drops, drains=False)
        pool = plant.pool = Pool(cfg, plant.start)
        taken: list[list[int]] = []
        while True:
            pool.admit(len(taken))
            if (wave := await pool.take()) is None:
                return taken
            assert all(len(taken) - d.oldest_version <= staleness for d in wave.drawn)
            taken.append([d.draw for d in wave.drawn])
            plant.version = len(taken)
            if len(taken) in stops:
                state, waiting = json.loads(json.dumps(pool.state())), pool.finished()
                for task in plant.tasks:
                    task.cancel()
                plant = Plant(seed=seed + len(taken), drops=drops, drains=False)
                plant.version = len(taken)
                pool = plant.pool = Pool(cfg, plant.start)
                pool.restore(state, waiting)

    taken = asyncio.run(main())
    flat = [d for wave in taken for d in wave]
    assert len(set(flat)) == len(flat)
    assert not set(flat) & drops
    assert all(len(wave) == groups for wave in taken[:-1])
    if total is None:
        assert len(taken) == cfg.steps
    elif len(taken) < 6:
        assert sorted(flat) == [d for d in range(total) if d not in drops]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    drops=drops_of,
    allowed=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    deterministic=st.booleans(),
    groups=st.integers(1, 4),
    total=st.one_of(st.none(), st.integers(1, 30)),
    stops=st.lists(st.integers(1, 6), max_size=3),
)
def test_the_bound_of_its_own_step_holds_for_every_token(seed, drops, allowed, deterministic, groups, total, stops):
    """Also where it falls, where draws move to an earlier step, and after stops."""
    by_step = ByStep(at=tuple(enumerate(allowed)))
    cfg = config(
        groups_per_step=groups,
        max_staleness=max(allowed),
        staleness=by_step,
        deterministic=deterministic,
        total_draws=total,
    )

    async def main() -> list[list[int]]:
        plant = Plant(seed=seed, drops=drops, drains=False)
        pool = plant.pool = Pool(cfg, plant.start)
        taken: list[list[int]] = []
        while True:
            pool.admit(len(taken))
            if (wave := await pool.take()) is None:
                return taken
            assert all(len(taken) - d.oldest_version <= value_at(by_step, len(taken)) for d in wave.drawn)
            taken.append([d.draw for d in wave.drawn])
            plant.version = len(taken)
            if len(taken) in stops:
                state, waiting = json.loads(json.dumps(pool.state())), pool.finished()
                for task in plant.tasks:
                    task.cancel()
                plant = Plant(seed=seed + len(taken), drops=drops, drains=False)
                plant.version = len(taken)
                pool = plant.pool = Pool(cfg, plant.start)
                pool.restore(state, waiting)

    taken = asyncio.run(main())
    flat = [d for wave in taken for d in wave]
    assert len(set(flat)) == len(flat) and not set(flat) & drops
    assert all(len(wave) == groups for wave in taken[:-1])
    assert total is not None or len(taken) == cfg.steps


def test_as_many_waves_run_ahead_as_the_step_they_are_for_allows():
    plant = Plant(seed=0, drops=frozenset())
    plant.start = plant.started.append  # nothing ends
    pool = Pool(config(groups_per_step=1, max_staleness=2, staleness=ByStep(at=((0, 0), (2, 2), (4, 0)))), plant.start)
    ahead: list[int] = []
    for version in range(5):
        pool.admit(version)
        ahead.append(len(plant.started))
    assert ahead == [1, 4, 4, 4, 5]


@settings(max_examples=80, deadline=None)
@given(
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    drops=drops_of,
    staleness=st.sampled_from([0, 1]),
    stop_at=st.integers(1, 6),
)
def test_deterministic_waves_do_not_depend_on_timing_or_on_stopping(seeds, drops, staleness, stop_at):
    cfg = config(max_staleness=staleness)
    whole, _, _ = asyncio.run(run(Plant(seed=seeds[0], drops=drops), cfg))

    async def stopped() -> list[list[int]]:
        first = Plant(seed=seeds[1], drops=drops)
        taken, state, pool = await run(first, cfg, stop_at)
        if state is None:
            return taken
        waiting = pool.finished()
        second = Plant(seed=seeds[0] + 1, drops=drops)
        second.version = len(taken)
        again = second.pool = Pool(cfg, second.start)
        again.restore(json.loads(state), waiting)
        again.admit(len(taken))
        while (wave := await again.take()) is not None:
            taken.append([d.draw for d in wave.drawn])
            await again.drained()
            second.version = len(taken)
            again.admit(len(taken))
        return taken

    assert asyncio.run(stopped()) == whole


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("failed", r"Dropped: failed {n}; reasons: told to\. Their rewards: .*Mend the cause, or raise schedule"),
        (
            "zero_variance",
            r"Dropped: zero_variance {n}\. Their rewards: all attempts 0\.25 in {n} of {n} groups \(100%\); means of "
            r"groups: all 0\.25\. Where all attempts fail, take easier prompts",
        ),
    ],
)
def test_refills_are_capped_and_the_failure_shows_reasons_and_rewards(deterministic, kind, words):
    # pitfall 30
    plant = Plant(seed=0, drops=frozenset(range(1000)))
    plant.kind = kind
    n = 9 if deterministic else 7  # at once: the first that cannot be replaced is enough
    words = rf"Step 0 could not be filled: {n} of its 9 .*max_refills=2 is spent\. {words.format(n=n)}"
    with pytest.raises(PoolError, match=words):
        asyncio.run(run(plant, config(max_refills=2, deterministic=deterministic)))
    assert plant.started == list(range(3 + 2 * 3))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_step_may_take_as_many_draws_as_the_cap_whatever_their_waves(deterministic):
    """One of ten draws is kept: the last groups come in waves of one, and these count as draws, not as waves."""
    plant = Plant(seed=0, drops=frozenset(d for d in range(1000) if d % 10))
    taken, _, _ = asyncio.run(run(plant, config(max_refills=10, deterministic=deterministic, steps=3)))
    assert taken == [[0, 10, 20], [30, 40, 50], [60, 70, 80]]


def test_the_first_failure_is_raised_to_whoever_waits():
    async def main() -> None:
        pool = Pool(config(), lambda draw: None)
        pool.admit(0)
        asyncio.get_running_loop().call_later(0.01, pool.fail, ValueError("first"))
        asyncio.get_running_loop().call_later(0.02, pool.fail, ValueError("second"))
        with pytest.raises(ValueError, match="first"):
            await pool.take()

    asyncio.run(main())
