"""Pictures of runs: their metrics over steps, time or samples, one run or several over each other.

The only place that draws with matplotlib. Warm-up and main phase stand on one axis, warm-up first, with a shade behind
it. What a metric is called and where it comes from (steps or evaluations) is the record's.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from stretto.errors import ConfigError, StoreError, nearest
from stretto.store import AttemptBody, EvalBody, PhaseBody, RunView, StepBody

__all__ = ["SUFFIXES", "Axis", "Plot", "Series", "metric_names", "save_plot", "series_of"]

Axis: TypeAlias = Literal["step", "time", "samples"]

SUFFIXES = (".png", ".svg")
AXES = {"step": "steps", "time": "minutes", "samples": "trajectories"}
COLORS = ("#1f5a8f", "#c4761b", "#2e8b57", "#a23b72", "#6a5acd", "#b22222", "#008b8b", "#7f7f00")
REWARD, ACCURACY = "reward/mean", "/accuracy"
DASHED = (0, (4, 1.5))
SAMPLES = "batch/trajectories"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What to draw. ``metrics``: each in a panel of its own; none: reward and accuracies in one panel.

    ``smooth``: steps of the centred mean drawn over what steps report; None: a twentieth of the curve for the reward,
    nothing for named metrics.
    """

    title: str = ""
    metrics: tuple[str, ...] = ()
    x: Axis = "step"
    smooth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A metric of a run: its points [N] in order, and where the warm-up ends on the same axis (0 without one)."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    boundary: float
    evaluated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a line is drawn; ``line`` is one of matplotlib's line styles."""

    color: str
    line: Any = "-"


def metric_names(view: RunView) -> list[str]:
    """Every metric that steps or evaluations of any phase report."""
    names: set[str] = set()
    for event in view.events:
        match event.body:
            case StepBody():
                names |= event.body.metrics.keys()
            case EvalBody():
                names |= {f"{event.body.name}{ACCURACY}", *event.body.metrics}
            case _:
                continue
    return sorted(names)


def series_of(view: RunView, metric: str, x: Axis = "step") -> Series:
    """The finite values of a metric over both phases. Times are of work that counts: no pause between attempts."""
    begun = {e.body.attempt: e.time_s for e in view.all_events if isinstance(e.body, AttemptBody)}
    xs: list[float] = []
    ys: list[float] = []
    boundary = steps = samples = clock_s = 0.0
    last: tuple[int, float] | None = None
    evaluated = False
    for event in view.events:
        before = last[1] if last is not None and last[0] == event.attempt else begun.get(event.attempt, event.time_s)
        clock_s += max(event.time_s - before, 0.0)
        last = (event.attempt, event.time_s)
        value: float | None = None
        match event.body:
            case StepBody() as body:
                steps += 1
                samples += body.metrics.get(SAMPLES, 0.0)
                value = body.metrics.get(metric)
            case EvalBody() as body:
                value = body.accuracy if metric == f"{body.name}{ACCURACY}" else body.metrics.get(metric)
                evaluated = evaluated or value is not None
            case PhaseBody(state="end") if event.phase == "warmup":
                boundary = {"step": steps, "time": clock_s / 60, "samples": samples}[x]
            case _:
                pass
        if value is not None and math.isfinite(value):
            xs.append({"step": steps, "time": clock_s / 60, "samples": samples}[x])
            ys.append(value)
    return Series(xs=tuple(xs), ys=tuple(ys), boundary=boundary, evaluated=evaluated)


def save_plot(views: Sequence[RunView], path: Path, plot: Plot) -> None:
    """Draw ``views`` into ``path``, as PNG or SVG by its name.

    Raises ConfigError for another kind of file or a metric that no run has, StoreError if it cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path} does not say how to draw it: its name ends in none of {', '.join(SUFFIXES)}.")
    for metric in plot.metrics:
        known = {name for view in views for name in metric_names(view)}
        if metric not in known:
            mean = f"{metric}/mean"
            near = f" Did you mean {mean!r}?" if mean in known else nearest(metric, known)
            raise ConfigError(f"there is no metric {metric!r} in {_names(views)}.{near}")
    # matplotlib takes most of a second to import, which only a command that draws should pay for. The Figure is made
    # without pyplot: no display is looked for, and nothing global is touched.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: Sequence[str | None] = plot.metrics or (None,)
    figure = Figure(figsize=(9, max(5.0, 3.2 * len(panels))), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    column = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, metric in zip(column, panels, strict=True):
        _draw_panel(axes, views, metric, plot)
    figure.suptitle(plot.title)
    try:
        figure.savefig(path)
    except OSError as error:
        raise StoreError(f"the picture cannot be saved as {path}: {error.strerror}. No run was changed.") from error


def _names(views: Iterable[RunView]) -> str:
    return ", ".join(view.name for view in views)


def _draw_panel(axes: Any, views: Sequence[RunView], metric: str | None, plot: Plot) -> None:
    """One panel: a metric, or (None) reward and accuracies."""
    boundaries: list[float] = []
    for index, view in enumerate(views):
        color = COLORS[index % len(COLORS)]
        names = metric_names(view)
        shown = [metric] if metric is not None else [n for n in names if n == REWARD or n.endswith(ACCURACY)]
        for name in shown:
            series = series_of(view, name, plot.x)
            boundaries.append(series.boundary)
            label = _label(name, view, len(views) > 1, metric is None)
            look = _look(color, name, len(views) == 1) if metric is None else Look(color=color)
            _draw_series(axes, series, label, look, plot)
    known = set(boundaries)
    for boundary in known - {0.0}:
        axes.axvline(boundary, color="#8a8370", linestyle="--", linewidth=1)
    if len(known) == 1 and boundaries[0] > 0:
        axes.axvspan(0, boundaries[0], color="#f2efe6", zorder=0)
        axes.text(boundaries[0] / 2, 1.0, "warm-up", transform=axes.get_xaxis_transform(), ha="center", va="bottom",
                  color="#6b6553", fontsize=9)  # fmt: skip
    axes.set(xlabel=_axis(plot.x, bool(known - {0.0})), ylabel=metric or "accuracy, reward")
    if metric is None:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -0.02), max(high, 1.04))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", framealpha=0.9, handlelength=3.2)


def _axis(x: Axis, warms_up: bool) -> str:
    return f"{AXES[x]}, warm-up included" if warms_up else AXES[x]


def _label(name: str, view: RunView, several: bool, default: bool) -> str:
    """What the legend says: the run where there are several, the metric in words where a panel has more than one."""
    words = name.replace("_", "-").replace(ACCURACY, " accuracy") if name != REWARD else "training reward"
    if not several:
        return words if default else name
    return f"{view.name}: {words}" if default else view.name


def _look(color: str, name: str, alone: bool) -> Look:
    """Beside accuracies, the reward has a color of its own; of several runs, whose color it shares, a dashed line."""
    if name != REWARD:
        return Look(color=color)
    return Look(color=COLORS[1]) if alone else Look(color=color, line=DASHED)


def _draw_series(axes: Any, series: Series, label: str, look: Look, plot: Plot) -> None:
    """Evaluations as marked points; what steps report as a line, faint where a smoothed one lies over it."""
    if series.evaluated:
        axes.plot(series.xs, series.ys, color=look.color, marker="o", markersize=4.5, linewidth=1.8, label=label,
                  zorder=3, clip_on=False)  # fmt: skip
        return
    window = plot.smooth or (max(len(series.ys) // 20, 1) if not plot.metrics else 1)
    if window > 1:
        axes.plot(series.xs, series.ys, color=look.color, alpha=0.25, linewidth=0.8)
        label = f"{label} (mean of {window} steps)"
    axes.plot(series.xs, _smooth(series.ys, window), color=look.color, linestyle=look.line, linewidth=1.4, label=label)


def _smooth(values: Sequence[float], window: int) -> list[float]:
    """Means over a centred window of ``window`` values, fewer at the ends."""
    before, after = (window - 1) // 2, window // 2
    windows = [values[max(i - before, 0) : i + after + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in windows]
