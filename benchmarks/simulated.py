"""What a schedule should take: waves of completions on an engine of so many slots, and a learner, as events in time.

Not Stretto's code: the laws of a schedule said a second time, to hold measurements against. Completions take slots in
the order in which they are admitted, so when each ends is known as soon as it is admitted.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Case", "Simulated", "simulate"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """``completions`` a step, an engine with ``slots``, ``step_s`` seconds to train; with version v published waves up
    to v + ``max_staleness`` may run. ``drains``: they all end before the next version is published."""

    completions: int
    slots: int
    step_s: float
    max_staleness: int
    drains: bool


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """From when to when each completion was under way and each step trained, and when the windows after steps ended."""

    completions: tuple[tuple[float, float], ...]
    steps: tuple[tuple[float, float], ...]
    ends_s: tuple[float, ...]


def simulate(case: Case, steps: int, seconds: Callable[[], float]) -> Simulated:
    """``steps`` steps; ``seconds()`` says how long the next completion takes."""
    free_s = [0.0] * case.slots
    done_s: list[float] = []
    busy: list[tuple[float, float]] = []

    def admit(now_s: float, last: int) -> None:
        while len(done_s) <= min(last, steps - 1):
            ends = list[float]()
            for _ in range(case.completions):
                begin = max(now_s, heapq.heappop(free_s))
                ends.append(begin + seconds())
                heapq.heappush(free_s, ends[-1])
                busy.append((begin, ends[-1]))
            done_s.append(max(ends))

    now_s, trained, ends_s = 0.0, list[tuple[float, float]](), list[float]()
    for step in range(steps):
        admit(now_s, step + case.max_staleness)
        begin = max(now_s, done_s[step])
        now_s = begin + case.step_s
        trained.append((begin, now_s))
        if case.drains:
            now_s = max(now_s, *done_s)
        ends_s.append(now_s)
    return Simulated(completions=tuple(busy), steps=tuple(trained), ends_s=tuple(ends_s))
