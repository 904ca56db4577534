"""CPU time of the driver's loop per step, without a model: null engine and backend, rewards in the process, everything
recorded as in any run. 64 trajectories a step. Figures are over windows of 50 steps, since the machine's speed drifts.

Prediction (written before the first run): encoding 64 trajectories 0.7 ms, events 0.5 ms, graph and asyncio 1 ms,
rewards 0.3 ms, pool and window 0.3 ms: about 3 ms. Target: under 4 ms.
"""

import statistics
import tempfile
import time
from pathlib import Path

from stretto.api.runs import start
from stretto.config.load import recipe_from_mapping
from stretto.store import Event
from table import print_table, write_result

STEPS, WARM, WINDOW = 1100, 100, 50


def main() -> None:
    """Run, print the table, write results/driver.json."""
    marks: dict[int, tuple[float, float]] = {}

    def observe(event: Event) -> None:
        if event.kind == "step" and event.step is not None:
            marks[event.step] = (time.process_time(), time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_from_mapping(
            {
                "runs_dir": folder,
                "steps": STEPS,
                "engine": {"type": "fake"},
                "backend": {"type": "fake"},
                "prompts": {"type": "builtin", "name": "addition", "max": 99},
                "sampling": {"n": 8, "max_tokens": 8},
                "schedule": {"groups_per_step": 8},
                "reward": {"workers": 0},
                "evaluate": {"at_start": False, "at_end": False},
            }
        )
        start(recipe, hint="driver", observer=observe)
        record_bytes = sum(p.stat().st_size for p in Path(folder).rglob("*.jsonl"))
    windows = [(marks[step], marks[step + WINDOW]) for step in range(WARM, STEPS - WINDOW, WINDOW)]
    cpu = sorted(1e3 * (b[0] - a[0]) / WINDOW for a, b in windows)
    wall = sorted(1e3 * (b[1] - a[1]) / WINDOW for a, b in windows)
    row = {
        "steps": STEPS - WARM,
        "trajectories_per_step": 64,
        "cpu_ms_median": statistics.median(cpu),
        "cpu_ms_min": cpu[0],
        "cpu_ms_max": cpu[-1],
        "wall_ms_median": statistics.median(wall),
        "recorded_kb_per_step": record_bytes / STEPS / 1e3,
        "target_cpu_ms": 4.0,
    }
    print_table("driver loop, null engine and backend", [row])
    write_result("driver", row)


if __name__ == "__main__":
    main()
