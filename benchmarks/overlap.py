"""What ``schedule.max_staleness=1`` gains on two cores: rollout on one of them while training goes on on the other.

The same recipe with the same seed, one thread each for engine and learner, *in turns* (``max_staleness`` 0) and *at
once* (1); and, since that is the other use for a second core, in turns with two threads for the learner. Each is a
process of its own, and they take turns. The learning rate is so small that all sample the same tokens, so step k is the
same work in every process, and of every step the fastest counts: what disturbs a machine only ever slows it.

Generating and training are what the driver waits for in turns (``time/wait_s``, ``time/train_s``). Overlap is the share
of the shorter of the two that is hidden behind the longer: (wall in turns - wall at once) / min(generate, train); 1 is
all of it. ``engine_cpu_s`` and ``learner_cpu_s`` are the CPU seconds of those threads in a step: what grows from in
turns to at once is the price of sharing Python's lock, caches and memory.

Prediction (written before the first run): SmolLM2 0.8, since nearly all of it is products outside Python's lock; the
1 M model 0.3 at natural stops and 0.5 at forced 32, since there both threads are in Python half of the time.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.api import runs
from stretto.config.load import recipe_from_mapping
from stretto.runtime.build import Given, Job, prepare
from stretto.store import Event, StepBody
from table import print_table, write_result
from warmed import smollm_model, warmed_model

HERE = Path(__file__).parent
PROCESSES = 3
"""Of each side, in turns."""
TINY = {"groups": 8, "n": 8, "max_tokens": 32, "forced": False, "steps": 110, "skip": 10}
FORCED = {**TINY, "forced": True, "steps": 34, "skip": 4}
SMOLLM = {**TINY, "groups": 2, "n": 4, "steps": 5, "skip": 1}
VARIANTS = {
    "in turns": {"staleness": 0, "threads": 1},
    "at once": {"staleness": 1, "threads": 1},
    "in turns, 2 threads": {"staleness": 0, "threads": 2},
}
WAITS = ("wait", "train", "drain", "publish")


def measure(job: dict[str, Any], folder: Path) -> list[dict[str, float]]:
    """One run in a process of its own; the figures of every step."""
    result = folder / "result.json"
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, __file__, str(folder / "job.json"), str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{job['case']} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    steps: list[dict[str, float]] = json.loads(result.read_text())
    wall_s = statistics.mean(step["wall_s"] for step in steps)
    print(f"  {job['case']}, {job['how']}: {wall_s:.3f} s a step", flush=True)
    return steps


def run(job: dict[str, Any], result: Path) -> None:
    """The process: train, and write the figures of every step but the first."""
    marks: list[dict[str, float]] = []
    waits: list[dict[str, float]] = []

    def observe(event: Event) -> None:
        if event.kind == "step" and event.phase == "main":
            assert isinstance(event.body, StepBody)
            marks.append({"wall_s": time.perf_counter(), "cpu_s": time.process_time(), **_threads()})
            waits.append({f"{name}_s": event.body.metrics[f"time/{name}_s"] for name in WAITS})

    if job["forced"]:
        runs.prepare = _without_stops  # type: ignore[assignment]
    runs.start(recipe_from_mapping(_recipe(job, result.parent)), hint="overlap", observer=observe)
    steps: list[dict[str, float]] = []
    for before, after, waited in zip(marks, marks[1:], waits[1:], strict=False):
        steps.append({name: after[name] - before[name] for name in after} | waited)
    result.write_text(json.dumps(steps[job["skip"] - 1 :]))


def _threads() -> dict[str, float]:
    """CPU seconds of the threads of engine, learner and driver so far."""
    known = {"stretto-native-engine": "engine", "stretto-learner": "learner", "stretto-driver": "driver"}
    seconds: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.name in known and thread.ident is not None:
            clock = time.pthread_getcpuclockid(thread.ident)
            seconds[f"{known[thread.name]}_cpu_s"] = time.clock_gettime(clock)
    return seconds


def _without_stops(recipe: Any, given: Given) -> Job:
    """The job whose completions all have ``max_tokens`` tokens."""
    job = prepare(recipe, given)
    phases = tuple(replace(p, sampling=replace(p.sampling, stop_ids=())) for p in job.phases)
    return replace(job, phases=phases)


def _recipe(job: dict[str, Any], folder: Path) -> dict[str, object]:
    return {
        "runs_dir": str(folder / "runs"),
        "steps": job["steps"],
        "model": {"path": job["model"]},
        "prompts": {"type": "jsonl", "path": job["prompts"], "held_out": 0.0},
        "reward": {"use": "exact_match", "workers": 0},
        "algorithm": {"type": "grpo"},
        "sampling": {"n": job["n"], "max_tokens": job["max_tokens"]},
        "engine": {"slots": job["groups"] * job["n"], "threads": 1},
        "backend": {"lr": 1e-12, "threads": job["threads"]},
        "schedule": {"groups_per_step": job["groups"], "max_staleness": job["staleness"]},
        "evaluate": {"at_start": False, "at_end": False},
    }


def compare(case: str, job: dict[str, Any], folder: Path) -> list[dict[str, object]]:
    """A row of figures for each variant, and what it gains over taking turns as a share of the shorter side."""
    found: dict[str, list[list[dict[str, float]]]] = {how: [] for how in VARIANTS}
    for _ in range(PROCESSES):
        for how, settings in VARIANTS.items():
            found[how].append(measure({**job, **settings, "case": case, "how": how}, folder))
    best = {how: fastest(processes) for how, processes in found.items()}
    turns = best["in turns"]
    shorter = min(turns["wait_s"], turns["train_s"])
    rows: list[dict[str, object]] = []
    for how, figures in best.items():
        gain = (turns["wall_s"] - figures["wall_s"]) / shorter
        rows.append({"case": case, "how": how, **figures, "overlap": gain if how == "at once" else ""})
    return rows


def fastest(processes: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """The mean over the steps of each figure's smallest value among the processes."""
    steps = list(zip(*processes, strict=True))
    return {name: statistics.mean(min(p[name] for p in step) for step in steps) for name in steps[0][0]}


def main() -> None:
    """Run, print the table, write results/overlap.json."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, prompts, _ = warmed_model(folder)
        tiny = {"model": model, "prompts": prompts}
        model, prompts = smollm_model(folder)
        rows = compare("1 M, natural stops", {**TINY, **tiny}, folder)
        rows += compare("1 M, forced 32", {**FORCED, **tiny}, folder)
        rows += compare("SmolLM2-135M", {**SMOLLM, "model": model, "prompts": prompts}, folder)
    print_table("Seconds of a step, and the share of the shorter side that is hidden behind the longer", rows)
    write_result("overlap", rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    else:
        main()
