"""Whether anything of a run grows over 5,000 steps, or gets slower: null engine and backend, so that what is left is
Stretto's own. A reward process, rollout one step ahead, an evaluation and a checkpoint every 250 steps.

Every 100 steps: resident memory of this process and of its children; after Python's collector has run, objects and
memory blocks; tasks of the driver's loop, threads, open files; and the CPU time of this process a step since the last
sample, samples left out. Medians of an early and a late window are compared. Not flat is a failure: exit status 1.

Prediction (written before the first run): memory of the reward process to the page, of the driver within 1 MB; objects,
tasks, threads and files to the number; CPU time a step within 3 %, which is what the machine's speed drifts by.
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from stretto.api.runs import start
from stretto.config.load import recipe_from_mapping
from stretto.store import Event
from table import print_table, write_result

STEPS, EVERY = 5000, 100
EARLY, LATE = range(500, 1501), range(4000, 5001)
"""Steps whose medians are compared: the first is after every prompt has been seen, judged and evaluated."""
BOUNDS = {
    "driver_mb": (1.01, 2.0),
    "children_mb": (1.01, 1.0),
    "objects": (1.01, 100.0),
    "blocks": (1.005, 500.0),
    "tasks": (1.0, 0.0),
    "threads": (1.0, 0.0),
    "files": (1.0, 0.0),
    "children": (1.0, 0.0),
    "cpu_ms_per_step": (1.10, 0.1),
}
"""How much of the early median the late one may be, or by how much it may be above it; the larger of both holds."""


class Sampler:
    """Takes the samples, in the driver's thread, as an observer of the run's events."""

    def __init__(self) -> None:
        self.samples: list[dict[str, float]] = []
        self._process = psutil.Process()
        self._since_s = 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "step" and event.step is not None and (event.step + 1) % EVERY == 0:
            spent_s = time.process_time() - self._since_s
            self.samples.append(self._sample(event.step + 1, spent_s))
            self._since_s = time.process_time()

    def _sample(self, step: int, spent_s: float) -> dict[str, float]:
        children = self._process.children(recursive=True)
        resident = self._process.memory_info().rss
        gc.collect()
        return {
            "step": step,
            "driver_mb": resident / 1e6,
            "children_mb": sum(child.memory_info().rss for child in children) / 1e6,
            "children": len(children),
            "objects": len(gc.get_objects()),
            "blocks": sys.getallocatedblocks(),
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "files": self._process.num_fds(),
            "cpu_ms_per_step": 1e3 * spent_s / EVERY,
        }


def main() -> int:
    """Run, print the tables, write results/soak.json; the exit status."""
    sampler = Sampler()
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_from_mapping(
            {
                "runs_dir": folder,
                "steps": STEPS,
                "engine": {"type": "fake"},
                "backend": {"type": "fake"},
                "prompts": {"type": "builtin", "name": "addition", "max": 19},
                "reward": {"use": "exact_match", "workers": 1},
                "sampling": {"n": 4, "max_tokens": 8},
                "schedule": {"groups_per_step": 8, "max_staleness": 1},
                "evaluate": {"every": 250, "limit": 64},
                "save": {"every": 250},
            }
        )
        begin = time.perf_counter()
        start(recipe, hint="soak", observer=sampler)
        wall_s = time.perf_counter() - begin
        records_mb = sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl")) / 1e6
    print(f"{STEPS} steps in {wall_s:.0f} s, {records_mb:.0f} MB of records")
    print_table("What a run holds and takes", sampler.samples)
    rows = [_row(name, sampler.samples) for name in BOUNDS]
    print_table(f"Medians of steps {EARLY[0]} to {EARLY[-1]} and {LATE[0]} to {LATE[-1]}", rows)
    write_result("soak", {"steps": STEPS, "wall_s": wall_s, "samples": sampler.samples, "medians": rows})
    grown = [str(row["what"]) for row in rows if not row["flat"]]
    if grown:
        print(f"not flat: {', '.join(grown)}")
    return 1 if grown else 0


def _row(name: str, samples: list[dict[str, float]]) -> dict[str, object]:
    early, late = (statistics.median(s[name] for s in samples if s["step"] in part) for part in (EARLY, LATE))
    factor, more = BOUNDS[name]
    bound = max(factor * early, early + more)
    return {"what": name, "early": early, "late": late, "ratio": late / early, "bound": bound, "flat": late <= bound}


if __name__ == "__main__":
    sys.exit(main())
