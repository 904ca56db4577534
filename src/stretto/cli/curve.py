"""The learning curve of a run: its points, and its drawing in a terminal. Pictures are ``plot.py``'s.

Warm-up and main phase stand on one axis of steps, warm-up first, with the boundary between them marked.
"""

import math
from dataclasses import dataclass

from stretto.store import RunView, StepBody

__all__ = ["Curve", "Point", "curve_of", "draw_chart"]

WARMUP, MAIN = "warmup", "main"
UNICODE = {"main": "●", "warmup": "○", "reward": "·", "edge": "┊", "axis": "┤", "floor": "─", "corner": "└"}
ASCII = {"main": "*", "warmup": "o", "reward": ".", "edge": ":", "axis": "|", "floor": "-", "corner": "+"}


@dataclass(frozen=True, slots=True)
class Point:
    """``value`` after ``x`` steps of all phases."""

    x: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Accuracies of evaluations in both phases and the mean training reward of each main step. The main phase begins
    after ``boundary`` steps of warm-up and ends at ``end``."""

    boundary: int
    end: int
    warmup: tuple[Point, ...]
    main: tuple[Point, ...]
    reward: tuple[Point, ...]
    workflow: str = MAIN


def curve_of(view: RunView, workflow: str = MAIN) -> Curve:
    """The curve of a run, by what counts in its record; ``workflow`` names the main phase in drawings."""
    warm_steps = [e.step for e in view.events if isinstance(e.body, StepBody) and e.phase == WARMUP]
    boundary = 1 + max((s for s in warm_steps if s is not None), default=-1)
    return Curve(
        boundary=boundary,
        end=boundary + view.steps,
        warmup=tuple(Point(e.step, e.body.accuracy) for e in view.leading(WARMUP)),
        main=tuple(Point(boundary + e.step, e.body.accuracy) for e in view.leading(MAIN)),
        reward=tuple(Point(boundary + s + 1, v) for s, v in view.history("reward/mean") if math.isfinite(v)),
        workflow=workflow,
    )


def draw_chart(curve: Curve, *, width: int = 72, height: int = 13, unicode: bool = True) -> str:
    """The curve in characters, ``width`` columns and ``height`` rows without its axis and legend."""
    signs = UNICODE if unicode else ASCII
    columns = width - 8
    low, high = _range(curve)
    grid = [[" "] * columns for _ in range(height)]

    def column(x: int) -> int:
        return round(x / max(curve.end, 1) * (columns - 1))

    def put(column: int, value: float, sign: str) -> None:
        grid[round((high - value) / (high - low) * (height - 1))][column] = sign

    edge = column(curve.boundary)
    if curve.boundary:
        for row in grid:
            row[edge] = signs["edge"]
    rewards: dict[int, list[float]] = {}
    for point in curve.reward:
        rewards.setdefault(column(point.x), []).append(point.value)
    for at, values in rewards.items():
        put(at, sum(values) / len(values), signs["reward"])
    for points, sign in ((curve.warmup, signs["warmup"]), (curve.main, signs["main"])):
        for point in points:
            put(column(point.x), point.value, sign)
    lines: list[str] = []
    for index, row in enumerate(grid):
        labelled = index % 3 == 0 or index == height - 1
        label = f"{high - index / (height - 1) * (high - low):6.2f}" if labelled else " " * 6
        lines.append(f"{label} {signs['axis']}{''.join(row)}".rstrip())
    lines.append(f"{' ' * 7}{signs['corner']}{signs['floor'] * columns}")
    return "\n".join([*lines, *_legend(curve, columns, edge, signs)])


def _range(curve: Curve) -> tuple[float, float]:
    """0 to 1, wider if rewards go beyond."""
    values = [p.value for p in curve.reward]
    return min([0.0, *values]), max([1.0, *values])


def _legend(curve: Curve, columns: int, edge: int, signs: dict[str, str]) -> list[str]:
    """What the axis and the signs mean: the phases under their parts of the axis, as far as they fit."""
    main = f"{curve.workflow}: {curve.end - curve.boundary} steps"
    warm = f"warm-up: {curve.boundary} steps" if curve.boundary else ""
    right = columns - edge
    under = f"{warm:^{edge}}{main:^{right}}" if len(warm) <= edge and len(main) <= right else f"{warm}  {main}"
    named = [(signs["main"], "held-out accuracy", curve.main), (signs["warmup"], "in warm-up", curve.warmup)]
    named.append((signs["reward"], "training reward", curve.reward))
    meaning = "   ".join(f"{sign} {name}" for sign, name, points in named if points)
    return [f"{' ' * 8}{under}".rstrip(), f"{' ' * 8}{meaning}".rstrip()]
