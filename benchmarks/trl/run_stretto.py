"""One measured training by Stretto: ``run_stretto.py JOB.json RESULT.json``. See ``bench.py``."""

import json
import resource
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil

from stretto.api import runs
from stretto.config.load import recipe_from_mapping
from stretto.runtime.build import Given, Job, prepare
from stretto.store import Event

JOB = json.loads(Path(sys.argv[1]).read_text())


def thread_seconds() -> dict[str, float]:
    """CPU seconds of the engine's and the learner's thread so far, at the kernel's resolution of 10 ms."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: dict[str, float] = {}
    for thread in psutil.Process().threads():
        name = names.get(thread.id, "")
        seconds[name] = seconds.get(name, 0.0) + thread.user_time + thread.system_time
    return {
        "generate": seconds.get("stretto-native-engine", 0.0),
        "train": sum(s for name, s in seconds.items() if name.startswith("stretto-learner")),
    }


def without_stops(recipe: object, given: Given) -> Job:
    """The job whose completions all have ``max_tokens`` tokens."""
    job = prepare(recipe, given)  # type: ignore[arg-type]
    phases = tuple(replace(p, sampling=replace(p.sampling, stop_ids=())) for p in job.phases)
    return replace(job, phases=phases)


def recipe_of(folder: Path) -> dict[str, object]:
    """The same training as in ``run_trl.py``."""
    return {
        "runs_dir": str(folder / "stretto-runs"),
        "seed": JOB["seed"],
        "steps": JOB["steps"],
        "model": {"path": JOB["model"]},
        "prompts": {"type": "jsonl", "path": JOB["prompts"], "held_out": 0.0},
        "reward": {"use": "exact_match", "workers": 0},
        "algorithm": {"type": "grpo", "clip_low": 0.2, "clip_high": 0.2, "aggregate": "token_mean"},
        "sampling": {"n": JOB["n"], "max_tokens": JOB["max_tokens"], "temperature": 1.0, "deadline_s": 3600.0},
        "engine": {"slots": JOB["groups"] * JOB["n"], "threads": 1, "dtype": JOB["dtype"]},
        "backend": {"lr": JOB["lr"], "threads": 1, "max_grad_norm": 1.0, "dtype": JOB["dtype"]},
        "schedule": {"groups_per_step": JOB["groups"], "max_staleness": 0},
        "evaluate": {"at_start": False, "at_end": False},
    }


def main() -> None:
    marks: list[tuple[float, dict[str, float], float]] = []
    tokens: list[float] = []

    def observe(event: Event) -> None:
        if event.kind == "step" and event.phase == "main":
            marks.append((time.process_time(), thread_seconds(), time.time()))
            tokens.append(event.body.metrics["batch/written_tokens"])  # type: ignore[union-attr]

    if JOB["forced"]:
        runs.prepare = without_stops  # type: ignore[assignment]
    view = runs.start(recipe_from_mapping(recipe_of(Path(sys.argv[2]).parent)), hint="bench", observer=observe)
    if JOB["save"]:
        (view.path / "model").rename(JOB["save"])
    # The kernel counts a thread's time in units of 10 ms, so the parts of a step are shares over the whole run.
    steps = []
    for (cpu_0, _, _), (cpu_1, _, _), written in zip(marks, marks[1:], tokens[1:], strict=False):
        steps.append({"step": cpu_1 - cpu_0, "tokens": written})
    first, last = marks[0][1], marks[-1][1]
    for name in ("generate", "train"):
        for step in steps:
            step[name] = (last[name] - first[name]) / len(steps)
    result = {
        "steps": steps,
        "first_step_wall_s": marks[0][2] - JOB["started_at"],
        "first_step_cpu_s": marks[0][0],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
