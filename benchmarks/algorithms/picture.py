"""The picture of ``bench.py``'s result: a panel for each algorithm, mean and range over seeds, TRL's GRPO behind."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw"]

COLUMNS = 5
OURS, THEIRS = "#1f5a8f", "#9a9a9a"


def draw(curves: Mapping[str, Sequence[Mapping[str, Any]]], begin: float, budget: int, path: Path) -> None:
    """Draw ``curves`` (by algorithm, a curve per seed) into ``path``."""
    rows = -(-len(curves) // COLUMNS)
    figure = Figure(figsize=(2.3 * COLUMNS, 1.9 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    behind = _band(curves["trl-grpo"], budget) if "trl-grpo" in curves else None
    for ax, (name, seeds) in zip(axes, curves.items(), strict=False):
        own = THEIRS if name.startswith("trl-") else OURS
        if behind is not None and name != "trl-grpo":
            ax.plot(behind[0], behind[1], color=THEIRS, linewidth=1, linestyle=(0, (3, 2)))
        xs, mean, low, high = _band(seeds, budget)
        ax.fill_between(xs, low, high, color=own, alpha=0.25, linewidth=0)
        ax.plot(xs, mean, color=own, linewidth=1.6)
        ax.axhline(100 * begin, color="#cccccc", linewidth=0.8, zorder=0)
        ax.set_title(name.replace("trl-", "TRL "), fontsize=9, loc="left")
        ax.tick_params(labelsize=7)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(curves) :]:
        ax.set_visible(False)
    figure.supxlabel("samples, in thousands", fontsize=9)
    figure.supylabel("held-out accuracy, %", fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def _band(seeds: Sequence[Mapping[str, Any]], budget: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Samples in thousands, and the mean, lowest and highest accuracy in %, at every evaluation within the budget."""
    points = [np.asarray([p for p in seed["points"] if p[0] <= budget]) for seed in seeds]
    count = min(len(p) for p in points)
    at = np.stack([p[:count] for p in points])
    accuracy = 100 * at[:, :, 1]
    return at[:, :, 0].mean(0) / 1000, accuracy.mean(0), accuracy.min(0), accuracy.max(0)
