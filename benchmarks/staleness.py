"""What is learned at staleness 0, 1, 2 and 4, with and without off-policy correction. ``make bench-staleness``.

The quickstart's problem from one warmed policy: 16 prompts x 8 attempts a step, 400 steps, three seeds, GRPO, at two
learning rates: the quickstart's, and a third of it. Staleness 1 drains; 2 and 4 sample in flight
(``schedule.in_flight: keep``), so a completion may be written by several versions.

    plain      the gradient as if attempts were fresh (algorithm.proximal=detach)
    clip       ratio to the sampler's log-probs, clipped (algorithm.proximal=sampler, the default under staleness)
    weights    token ratios as weights, at most 2 (algorithm.correction.weights=token)

Prediction (written before the first run): at the quickstart's rate all end within two points of staleness 0, since an
update moves the policy little; at four times the rate, plain at staleness 4 ends five points or more below staleness 0
or falls apart, and clip and weights stay within three. Found: both wrong. At the quickstart's rate plain falls apart
from staleness 1 on, weights lose more with every step of lag, and clip is above on-policy, whose ratio is always 1, so
that no clip holds an update back. At four times the rate (4e-4) every schedule fell to 0, on-policy too, so a third
of the rate was taken in its place; foretold for it: plain within five points at staleness 1, clip level with on-policy.

``JOBS``: trainings at the same time (1): each takes two cores. ``RATE``: only this rate; the rest as last recorded.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from table import RESULTS, print_table, write_result
from warmed import warmed_model

ONE = Path(__file__).parent / "algorithms" / "one.py"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "staleness-learning.png"
SEEDS = (0, 1, 2)
STALENESS = (0, 1, 2, 4)
RATES = (3e-5, 1e-4)
STEPS, EVERY = 400, 50
WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"proximal": "detach"},
    "clip": {"proximal": "sampler"},
    "weights": {"correction": {"weights": "token"}},
}
COLORS = {0: "#1f5a8f", 1: "#2e8b57", 2: "#c4761b", 4: "#a23b72"}


def cases() -> list[tuple[float, int, str]]:
    """(learning rate, staleness, way). On-policy attempts have nothing to correct."""
    only = os.environ.get("RATE")
    rates = (float(only),) if only else RATES
    return [(lr, lag, way) for lr in rates for lag in STALENESS for way in WAYS if lag or way == "plain"]


def train(case: tuple[float, int, str], seed: int, base: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One training in a process of its own: its curve."""
    lr, lag, way = case
    name = f"{lr:g}-{lag}-{way}-{seed}"
    schedule: dict[str, Any] = {"max_staleness": lag}
    if lag > 1:
        schedule |= {"in_flight": "keep", "deterministic": False}
    overrides = {"algorithm": {"type": "grpo", **WAYS[way]}, "schedule": schedule}
    job = {**base, "name": name, "seed": seed, "steps": STEPS, "every": EVERY, "lr": lr, "per_draw": 8}
    job_file, result_file = folder / f"{name}.job.json", folder / f"{name}.json"
    job_file.write_text(json.dumps({**job, "overrides": overrides}))
    done = subprocess.run(
        [sys.executable, str(ONE), str(job_file), str(result_file)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(result_file.read_text())
    print(f"  lr {lr:g}, staleness {lag}, {way}, seed {seed}: {100 * result['points'][-1][1]:.1f} %", flush=True)
    return result


def recorded() -> dict[tuple[float, int, str], list[dict[str, Any]]]:
    """The curves of the last run."""
    path = RESULTS / "staleness.json"
    kept = json.loads(path.read_text())["result"]["curves"] if path.is_file() else []
    return {(k["lr"], k["staleness"], k["way"]): k["curves"] for k in kept if k["lr"] in RATES}


def row(case: tuple[float, int, str], curves: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """A row of the table: accuracy in % at the end over seeds, and the lowest on the way."""
    ends = [100 * curve["points"][-1][1] for curve in curves]
    return {
        "lr": f"{case[0]:g}",
        "staleness": case[1],
        "way": case[2] if case[1] else "on-policy",
        "mean": statistics.mean(ends),
        "lowest": min(ends),
        "highest": max(ends),
        "worst on the way": min(100 * accuracy for curve in curves for _, accuracy in curve["points"]),
    }


def draw(curves: Mapping[tuple[float, int, str], Sequence[Mapping[str, Any]]], path: Path) -> None:
    """A panel for each learning rate and way: mean and range over seeds, a colour for each staleness."""
    figure = Figure(figsize=(3.1 * len(WAYS), 2.4 * len(RATES) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(RATES), len(WAYS), sharex=True, sharey=True, squeeze=False)
    for line, lr in zip(axes, RATES, strict=True):
        for ax, way in zip(line, WAYS, strict=True):
            for lag in STALENESS:
                seeds = curves[lr, lag, way if lag else "plain"]
                points = np.asarray([curve["points"] for curve in seeds])
                at, accuracy = points[:, :, 0].mean(0) / 1000, 100 * points[:, :, 1]
                ax.fill_between(at, accuracy.min(0), accuracy.max(0), color=COLORS[lag], alpha=0.15, linewidth=0)
                ax.plot(at, accuracy.mean(0), color=COLORS[lag], linewidth=1.5, label=f"staleness {lag}")
            ax.set_title(f"{way}, learning rate {lr:g}", fontsize=9, loc="left")
            ax.tick_params(labelsize=7)
            ax.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.supxlabel("samples, in thousands", fontsize=9)
    figure.supylabel("held-out accuracy, %", fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> None:
    """Train all, print the table, draw the picture, keep the curves."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model, train_file, held_out = warmed_model(folder)
        base = {"model": model, "train": train_file, "held_out": held_out}
        with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
            futures = {case: [pool.submit(train, case, seed, base, folder) for seed in SEEDS] for case in cases()}
    curves = {case: [future.result() for future in each] for case, each in futures.items()}
    curves = dict(sorted({**recorded(), **curves}.items()))
    rows = [row(case, seeds) for case, seeds in curves.items()]
    print_table(f"{STEPS * 128:,} samples, {len(SEEDS)} seeds (held-out accuracy in %)", rows)
    draw(curves, PICTURE)
    kept = [{"lr": lr, "staleness": lag, "way": way, "curves": c} for (lr, lag, way), c in curves.items()]
    write_result("staleness", {"rows": rows, "curves": kept, "samples": STEPS * 128, "seeds": SEEDS})


if __name__ == "__main__":
    main()
