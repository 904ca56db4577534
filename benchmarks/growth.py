"""Whether a run grows with its steps: 1,000 of the 1 M model, with evaluations, checkpoints and rollout one step ahead.

Every 50 steps: the resident memory of this process and of its reward process as it is, then, after Python's collector
has run, memory blocks, objects and tensors, tasks of the driver's loop, threads, open files, and the bytes in the run's
folder.

Prediction (written before the first run): resident memory flat within 3 MB after step 300, blocks and objects within
1 %, tensors, tasks, threads and files to the number. The folder grows by 25 kB a step, all of it records.
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
import torch

from stretto.api.runs import start
from stretto.config.load import recipe_from_mapping
from stretto.store import Event
from table import print_table, write_result

STEPS, EVERY = 1000, 50
EARLY, LATE = range(300, 501), range(800, 1001)
"""Steps whose medians are compared."""


def sample(step: int, folder: Path) -> dict[str, float]:
    """What this process and the run's folder hold now."""
    process = psutil.Process()
    resident = process.memory_info().rss
    children = sum(child.memory_info().rss for child in process.children(recursive=True))
    gc.collect()
    objects = gc.get_objects()
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return {
        "step": step,
        "resident_mb": resident / 1e6,
        "children_mb": children / 1e6,
        "blocks": sys.getallocatedblocks(),
        "objects": len(objects),
        "tensors": sum(isinstance(thing, torch.Tensor) for thing in objects),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": process.num_fds(),
        "records_kb": sum(size for path, size in sizes.items() if path.suffix == ".jsonl") / 1e3,
        "rest_kb": sum(size for path, size in sizes.items() if path.suffix != ".jsonl") / 1e3,
    }


def main() -> None:
    """Run, print the tables, write results/growth.json."""
    torch.set_num_threads(1)
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:

        def observe(event: Event) -> None:
            if event.kind == "step" and event.step is not None and (event.step + 1) % EVERY == 0:
                samples.append(sample(event.step + 1, Path(folder)))

        recipe = recipe_from_mapping(
            {
                "runs_dir": folder,
                "steps": STEPS,
                "model": {"path": "builtin:tiny-llama-char"},
                "prompts": {"type": "builtin", "name": "addition", "max": 19},
                "reward": {"use": "exact_match"},
                "algorithm": {"type": "grpo"},
                "sampling": {"n": 8, "max_tokens": 4},
                "engine": {"slots": 64, "threads": 1},
                "backend": {"lr": 1e-5, "threads": 1},
                "schedule": {"groups_per_step": 8, "max_staleness": 1},
                "evaluate": {"every": 100, "limit": 64},
                "save": {"every": 100},
            }
        )
        begin = time.perf_counter()
        start(recipe, hint="growth", observer=observe)
        print(f"{STEPS} steps in {time.perf_counter() - begin:.0f} s")
    print_table("What a run holds", samples)
    rows = [_change(name, samples) for name in samples[0] if name != "step"]
    print_table(f"Medians of steps {EARLY[0]} to {EARLY[-1]} and {LATE[0]} to {LATE[-1]}", rows)
    write_result("growth", {"samples": samples, "medians": rows})


def _change(name: str, samples: list[dict[str, float]]) -> dict[str, object]:
    early, late = (statistics.median(s[name] for s in samples if s["step"] in part) for part in (EARLY, LATE))
    return {"what": name, "early": early, "late": late, "change": late - early}


if __name__ == "__main__":
    main()
