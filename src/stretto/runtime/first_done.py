"""The pool of ``schedule.over_sample``: more draws are under way than a step takes, and it takes those that end first.

A draw that was admitted when weights v were published may be taken by the steps up to v + max_staleness: its deadline.
A step waits for as many draws of near deadlines as the steps after it could not take any more, and for the first to end
of all others; so no deadline is ever missed, whichever ends when. ``rest`` says what becomes of the draws that it did
not wait for: they are given up (``abort``), or go on, and a later step takes them (``carry``).

What is told of laws and of ``start``, ``finish`` and ``drop`` in ``pool`` holds here too.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped
from stretto.runtime.pool import Pool, PoolConfig, Taken, unfilled

__all__ = ["AnyPool", "FirstDonePool", "open_pool"]

Start: TypeAlias = Callable[[int], None]
GiveUp: TypeAlias = Callable[[int, Dropped], None]

LEFT = Dropped(kind="left", why="a step had the groups it takes before this draw ended (schedule.over_sample)")


class FirstDonePool:
    """Draws under way and done, the first to end first. See the module's docstring for the laws."""

    def __init__(self, config: PoolConfig, start: Start, give_up: GiveUp) -> None:
        """``give_up`` ends a draw that is under way, and says why in its record."""
        assert config.over_sample is not None
        self._config, self._start, self._give_up = config, start, give_up
        self._under_way = -int(-config.over_sample * config.groups_per_step // 1)
        self._version = 0
        self._admitted: dict[int, int] = {}  # the version at which each draw that is in the pool was admitted
        self._done: dict[int, Drawn] = {}
        self._dropped: dict[int, Dropped] = {}
        self._replaced = 0
        self._next_draw = self._next_step = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def recorded_late(self) -> bool:
        """Whether the step that takes a draw is known only when it does."""
        return self._config.rest == "carry"

    def accepts(self, draw: int) -> bool:
        """Whether anybody will take what ``draw`` has made."""
        return self._config.rest == "carry" or len(self._done) < self._config.groups_per_step

    def step_of(self, draw: int) -> int:
        """The next step, which may take it."""
        return self._next_step

    def admitted_for(self, draw: int) -> int:
        """The step that was waited for when it was admitted."""
        return self._admitted[draw]

    @property
    def consumed(self) -> int:
        """How many draws the steps so far have taken, dropped ones among them."""
        return self._next_draw - len(self._admitted) - len(self._dropped)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to train on."""
        return not self._admitted and (self._steps_left() == 0 or self._left(1) == 0)

    def admit(self, version: int) -> None:
        """Weights ``version`` are published: have as many draws under way as there may be."""
        self._version = version
        self._fill()

    async def take(self) -> Taken | None:
        """The groups of the next step in draw order, once it may have them; None when nothing is left to train on."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self.ended or not self._admitted:
                return None
            want = min(self._config.groups_per_step, len(self._admitted))
            chosen = self._choose(want)
            if chosen is not None:
                break
            self._changed.clear()
            await self._changed.wait()
        taken = [self._done.pop(draw) for draw in sorted(chosen)]
        for draw in chosen:
            del self._admitted[draw]
        if self._config.rest == "abort":
            self._give_up_rest()
        dropped, self._dropped = self._dropped, {}
        self._next_step += 1
        self._replaced = 0
        return Taken(drawn=tuple(taken), dropped=dict(sorted(dropped.items())))

    async def drained(self) -> None:
        """Nothing is under way between steps, or it goes on while weights change."""

    def finish(self, drawn: Drawn) -> None:
        """A draw is ready."""
        assert drawn.draw in self._admitted and drawn.draw not in self._done, drawn.draw
        self._done[drawn.draw] = drawn
        self._changed.set()

    def drop(self, draw: int, dropped: Dropped) -> None:
        """A draw gives nothing to train on; another is admitted if a step would lack it."""
        del self._admitted[draw]
        self._dropped[draw] = dropped
        try:
            self._refill()
        finally:
            self._changed.set()

    def fail(self, failure: BaseException) -> None:
        """Make ``take`` raise; the first failure wins."""
        if self._failure is None:
            self._failure = failure
        self._changed.set()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON; finished groups are kept apart (``finished``)."""
        return {
            "next_draw": self._next_draw,
            "next_step": self._next_step,
            "admitted": {str(draw): version for draw, version in self._admitted.items()},
            "done": list(self._done),
            "dropped": {str(draw): dropped.to_json() for draw, dropped in self._dropped.items()},
        }

    def finished(self) -> tuple[Drawn, ...]:
        """What no step has taken yet, in draw order."""
        return tuple(self._done[draw] for draw in sorted(self._done))

    def restore(self, state: Mapping[str, Any], finished: Sequence[Drawn]) -> None:
        """Set the state of a fresh pool and start again what was under way, by the weights that are published now."""
        assert not self._admitted and self._next_draw == 0, "restore needs a fresh pool"
        self._next_draw, self._next_step = state["next_draw"], state["next_step"]
        self._version = self._next_step
        ready = {drawn.draw: drawn for drawn in finished}
        self._done = {draw: ready[draw] for draw in state["done"]}
        self._dropped = {int(draw): Dropped.from_json(raw) for draw, raw in state["dropped"].items()}
        for text, version in state["admitted"].items():
            self._admitted[int(text)] = version if int(text) in ready else self._version
        for draw in list(self._admitted):
            if draw not in ready:
                self._start(draw)

    def _choose(self, want: int) -> list[int] | None:
        """The draws that the next step takes, in no order; None if it has to wait."""
        if self._config.rest == "abort":
            return list(self._done)[:want] if len(self._done) >= want else None
        step, size = self._next_step, self._config.groups_per_step
        deadline = {draw: version + self._config.max_staleness for draw, version in self._admitted.items()}
        chosen: list[int] = []
        for last in sorted(set(deadline.values())):
            due = sum(d <= last for d in deadline.values())
            missing = due - size * (last - step) - len(chosen)
            ready = [draw for draw in self._done if deadline[draw] <= last and draw not in chosen]
            if missing > len(ready):
                return None
            chosen += ready[: max(0, missing)]
        assert len(chosen) <= want, (chosen, want, deadline)
        rest = [draw for draw in self._done if draw not in chosen]
        chosen += rest[: want - len(chosen)]
        return chosen if len(chosen) == want else None

    def _give_up_rest(self) -> None:
        for draw in list(self._admitted):
            del self._admitted[draw]
            self._dropped[draw] = LEFT
            if self._done.pop(draw, None) is None:
                self._give_up(draw, LEFT)

    def _fill(self) -> None:
        """As many draws as may be under way; none that no step will take."""
        most = self._under_way
        if self._config.rest == "carry":
            most = min(most, self._config.groups_per_step * self._steps_left())
        elif self._steps_left() == 0:
            most = 0
        self._draw(self._left(max(0, most - len(self._admitted))))

    def _refill(self) -> None:
        size = self._config.groups_per_step
        missing = self._left(max(0, size - len(self._admitted)))
        if missing and self._replaced + missing > self._config.max_refills * size:
            draws = len(self._admitted) + len(self._dropped)
            raise unfilled(self._next_step, list(self._dropped.values()), draws, self._config.max_refills)
        self._replaced += missing
        self._draw(missing)

    def _steps_left(self) -> int:
        """Steps that are still to be taken; many, where only the data ends."""
        return 2**31 if self._config.steps is None else self._config.steps - self._next_step

    def _left(self, want: int) -> int:
        """``want``, or less if the data ends before."""
        if self._config.total_draws is None:
            return want
        return min(want, self._config.total_draws - self._next_draw)

    def _draw(self, count: int) -> None:
        draws = range(self._next_draw, self._next_draw + count)
        self._next_draw += count
        for draw in draws:  # all are known before the first starts, since one may end at once
            self._admitted[draw] = self._version
        for draw in draws:
            self._start(draw)


AnyPool: TypeAlias = Pool | FirstDonePool
"""Either has the same methods."""


def open_pool(config: PoolConfig, start: Start, give_up: GiveUp) -> AnyPool:
    """The pool that a schedule asks for: steps take draws in their order, or those that end first."""
    return Pool(config, start) if config.over_sample is None else FirstDonePool(config, start, give_up)
