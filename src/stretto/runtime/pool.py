"""The pool: admission, order and staleness of groups between rollout and training.

Draws are admitted in waves, one wave a step, in order. With version v published, the wave of step s may run if
s - v <= max_staleness (of step s, where it changes by step), and what a wave's draws write is written by v or later
versions: by v alone where all that is in flight drains before the version changes, else by those that are published
while they run. So step - version <= max_staleness for every token, always: also of a draw that moves to an earlier
step s, since it was admitted no earlier than that step's own wave.

A dropped draw (a filter's, or a failure that a policy lets pass) is replaced by the next one. ``deterministic``: as a
further wave for the same step, once every draw of the wave has ended, so that which prompt replaces which does not
depend on timing. Otherwise at once. Either way no more than are missing, and no more than ``max_refills`` times what
the step wants.

The pool knows nothing of what makes a group: ``start(draw)`` is called for every admitted draw, and the runner answers
with ``finish`` or ``drop``. It lives on one event loop.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stretto.config.by_step import ByStep, whole_at
from stretto.errors import PoolError
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped, told_drops, told_rewards

__all__ = ["Pool", "PoolConfig", "Taken", "unfilled"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """What a step gets: its groups in draw order, and the draws that were dropped on the way."""

    drawn: tuple[Drawn, ...]
    dropped: Mapping[int, Dropped]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """``steps`` and ``total_draws`` (None: no end) bound what is ever admitted; the rest is ``schedule``'s.
    ``over_sample`` and ``rest`` are read by the pool of ``first_done``."""

    groups_per_step: int
    max_staleness: int
    deterministic: bool
    max_refills: int
    steps: int | None
    total_draws: int | None
    over_sample: float | None = None
    rest: Literal["abort", "carry"] = "abort"
    staleness: ByStep | None = None
    """``max_staleness`` by step, where it changes; the number is then the largest of it."""

    def staleness_of(self, step: int) -> int:
        """How many steps a token that ``step`` trains on may lag."""
        return self.max_staleness if self.staleness is None else whole_at(self.staleness, step)


@dataclass(slots=True)
class _Wave:
    """The draws of one step: running, finished (with their value) or dropped (with the reason).

    ``replaced``: how many draws were admitted in place of dropped ones.
    """

    step: int
    version: int
    want: int
    draws: list[int] = field(default_factory=list[int])
    finished: dict[int, Drawn] = field(default_factory=dict[int, Drawn])
    dropped: dict[int, Dropped] = field(default_factory=dict[int, Dropped])
    replaced: int = 0
    moved: dict[int, int] = field(default_factory=dict[int, int])
    """Draws that came from a later wave, with the step they were admitted for."""

    @property
    def running(self) -> int:
        return len(self.draws) - len(self.finished) - len(self.dropped)

    @property
    def missing(self) -> int:
        return self.want - self.running - len(self.finished)


class Pool:
    """Waves of draws, in step order. See the module's docstring for the laws."""

    def __init__(self, config: PoolConfig, start: Callable[[int], None]) -> None:
        self._config = config
        self._start = start
        self._waves: dict[int, _Wave] = {}
        self._wave_of: dict[int, _Wave] = {}
        self._next_draw = 0
        self._next_step = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    recorded_late = False
    """Whether the step that takes a draw is known only when it does."""

    def accepts(self, draw: int) -> bool:
        """Whether anybody will take what ``draw`` has made."""
        return True

    def step_of(self, draw: int) -> int:
        """The step that a draw which is not yet taken was admitted for."""
        return self._wave_of[draw].step

    def admitted_for(self, draw: int) -> int:
        """The step that a draw which is not yet taken was first admitted for, also after it has moved to another."""
        wave = self._wave_of[draw]
        return wave.moved.get(draw, wave.step)

    @property
    def consumed(self) -> int:
        """How many draws the steps so far have taken, dropped ones among them."""
        return self._next_draw - len(self._wave_of)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to train on: no group waits or runs, and nothing more will be admitted."""
        waiting = any(w.finished or w.running for w in self._waves.values())
        spent = self._config.steps is not None and self._next_step >= self._config.steps
        return not waiting and (spent or self._left(1) == 0)

    def admit(self, version: int) -> None:
        """Start every wave that weights ``version`` may sample."""
        steps = self._config.steps
        while steps is None or self._next_step < steps:
            if self._next_step - version > self._config.staleness_of(self._next_step):
                return
            want = self._left(self._config.groups_per_step)
            if want == 0:
                return
            wave = _Wave(step=self._next_step, version=version, want=want)
            self._waves[wave.step] = wave
            self._next_step += 1
            self._draw(wave, want)

    async def take(self) -> Taken | None:
        """The groups of the next step in draw order, once all are there; None when nothing is left to train on."""
        while self._waves:
            wave = await self._complete(min(self._waves))
            del self._waves[wave.step]
            taken = tuple(wave.finished[d] for d in sorted(wave.finished))
            for draw in wave.draws:
                del self._wave_of[draw]
            if not taken:  # the data ended in draws that were all dropped
                continue
            for drawn in taken:
                oldest = drawn.oldest_version
                assert oldest is None or wave.step - oldest <= self._config.staleness_of(wave.step), (wave.step, drawn)
            return Taken(drawn=taken, dropped=dict(sorted(wave.dropped.items())))
        return None

    async def drained(self) -> None:
        """Wait until no admitted draw is running and every wave is whole."""
        for step in sorted(self._waves):
            await self._complete(step)

    def finish(self, drawn: Drawn) -> None:
        """A draw is ready."""
        wave = self._wave_of[drawn.draw]
        assert drawn.draw not in wave.finished and drawn.draw not in wave.dropped, drawn.draw
        wave.finished[drawn.draw] = drawn
        self._changed.set()

    def drop(self, draw: int, dropped: Dropped) -> None:
        """A draw gives nothing to train on; it will be replaced."""
        wave = self._wave_of[draw]
        assert draw not in wave.finished and draw not in wave.dropped, draw
        wave.dropped[draw] = dropped
        if not self._config.deterministic:
            self._refill(wave)
        self._changed.set()

    def fail(self, failure: BaseException) -> None:
        """Make ``take`` and ``drained`` raise; the first failure wins."""
        if self._failure is None:
            self._failure = failure
        self._changed.set()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON; finished groups are kept apart (``finished``)."""
        waves = [
            {
                "step": w.step,
                "version": w.version,
                "want": w.want,
                "draws": w.draws,
                "dropped": {str(d): dropped.to_json() for d, dropped in w.dropped.items()},
                "replaced": w.replaced,
                "moved": {str(d): step for d, step in w.moved.items()},
            }
            for w in self._waves.values()
        ]
        return {"next_draw": self._next_draw, "next_step": self._next_step, "waves": waves}

    def finished(self) -> tuple[Drawn, ...]:
        """What no step has taken yet, in draw order."""
        waiting = {d: drawn for w in self._waves.values() for d, drawn in w.finished.items()}
        return tuple(waiting[d] for d in sorted(waiting))

    def restore(self, state: Mapping[str, Any], finished: Sequence[Drawn]) -> None:
        """Set the state of a fresh pool and start again what was running; nothing drawn is lost or drawn twice."""
        assert not self._waves and self._next_draw == 0, "restore needs a fresh pool"
        self._next_draw, self._next_step = state["next_draw"], state["next_step"]
        ready = {drawn.draw: drawn for drawn in finished}
        for w in state["waves"]:
            wave = _Wave(step=w["step"], version=w["version"], want=w["want"], replaced=w["replaced"])
            wave.draws = list(w["draws"])
            wave.dropped = {int(d): Dropped.from_json(raw) for d, raw in w["dropped"].items()}
            wave.moved = {int(d): step for d, step in w["moved"].items()}
            wave.finished = {d: ready[d] for d in wave.draws if d in ready}
            self._waves[wave.step] = wave
            for draw in wave.draws:
                self._wave_of[draw] = wave
        for wave in self._waves.values():
            for draw in wave.draws:
                if draw not in wave.finished and draw not in wave.dropped:
                    self._start(draw)

    async def _complete(self, step: int) -> _Wave:
        """Wait until the wave of ``step`` has every group it can get."""
        wave = self._waves[step]
        while True:
            if self._failure is not None:
                raise self._failure
            if wave.running == 0:
                self._refill(wave)
            if wave.running == 0 and wave.missing == 0:
                return wave
            self._changed.clear()
            await self._changed.wait()

    def _refill(self, wave: _Wave) -> None:
        """Draw as many as are missing, up to the cap. At the end of the data later waves give, or the wave shrinks."""
        missing = wave.missing
        if missing <= 0:
            return
        fresh = self._left(missing)
        if wave.replaced + fresh > self._config.max_refills * wave.want:
            raise unfilled(wave.step, list(wave.dropped.values()), len(wave.draws), self._config.max_refills)
        wave.replaced += fresh
        short = missing - fresh
        wave.want -= short - self._borrow(wave, short)
        self._draw(wave, fresh)

    def _borrow(self, wave: _Wave, count: int) -> int:
        """Move up to ``count`` draws to this wave from the next that has any, which borrows in turn: so draws stay in
        order, and only the last step is smaller."""
        for moved in range(count):
            having = ((step, later) for step, later in sorted(self._waves.items()) if step > wave.step)
            found = next(((later, d) for _, later in having for d in later.draws if d not in later.dropped), None)
            if found is None:
                return moved
            later, draw = found
            later.draws.remove(draw)
            later.want -= 1
            wave.draws.append(draw)
            wave.moved[draw] = later.moved.pop(draw, later.step)
            self._wave_of[draw] = wave
            if draw in later.finished:
                wave.finished[draw] = later.finished.pop(draw)
            later.want += self._borrow(later, 1)
        return count

    def _left(self, want: int) -> int:
        """``want``, or less if the data ends before."""
        if self._config.total_draws is None:
            return want
        return min(want, self._config.total_draws - self._next_draw)

    def _draw(self, wave: _Wave, count: int) -> None:
        draws = range(self._next_draw, self._next_draw + count)
        self._next_draw += count
        for draw in draws:  # all are known before the first starts, since one may end at once
            wave.draws.append(draw)
            self._wave_of[draw] = wave
        for draw in draws:
            self._start(draw)


def unfilled(step: int, dropped: Sequence[Dropped], draws: int, max_refills: int) -> PoolError:
    """Too many of the ``draws`` for a step were dropped."""
    spread = told_rewards([d.rewards for d in dropped])
    tail = "Mend the cause, or raise schedule.max_refills."
    if any(d.kind != "failed" for d in dropped):
        tail = (
            "Where all attempts fail, take easier prompts, a warm-up or a larger sampling.n; where all succeed, harder "
            "prompts or fewer steps; or loosen filter, or raise schedule.max_refills."
        )
    return PoolError(
        f"Step {step} could not be filled: {len(dropped)} of its {draws} draws were dropped, and "
        f"schedule.max_refills={max_refills} is spent. Dropped: {told_drops(dropped)}. "
        f"{f'Their rewards: {spread}. ' if spread else ''}{tail}"
    )
