"""SIGKILL at any instant, then resume: the same weights, metrics and rollouts as if nothing had happened."""

import random
import subprocess
import time
from pathlib import Path

import pytest

from stretto.store import RunView, compare_runs

VARIANTS = {
    "grpo": [],
    "grpo-staleness-1": ["schedule.max_staleness=1"],
    "ppo": ["algorithm.type=ppo"],
    "grpo-filter-success": [
        "filter.zero_variance=true",
        "order={type: success, first_pass: false}",
        "schedule.max_staleness=1",
        "reward={use: regex, with: {pattern: '[0-4]'}}",
    ],
    "ppo-lora": ["algorithm.type=ppo", "model.lora.rank=4"],
}


def kill_at_random(process: subprocess.Popen[str], run: Path, longest_s: float, rng: random.Random) -> bool:
    """SIGKILL the run somewhere between its first record and its end, every third time while a checkpoint is written.

    Returns False if it ended before.
    """
    while not (run / "events.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    in_checkpoint = rng.random() < 1 / 3
    deadline = time.monotonic() + (60 if in_checkpoint else rng.uniform(0, longest_s))
    while time.monotonic() < deadline and process.poll() is None:
        if in_checkpoint and any((run / "checkpoints").glob(".tmp-*")) and rng.random() < 0.2:
            break
        time.sleep(0.0005 if in_checkpoint else 0.005)
    killed = process.poll() is None
    process.kill()
    process.communicate(timeout=60)
    return killed


def kill_and_resume(stretto, overrides: list[str], kills: int, seed: int) -> None:
    reference = stretto.train("reference", overrides)
    view = RunView(reference)
    longest_s = view.wall_s
    rng = random.Random(seed)
    killed = runs = 0
    while killed < kills:
        runs += 1
        run = stretto.folder / "runs" / f"killed-{runs}"
        process = stretto.start("train", stretto.short, f"name={run.name}", *overrides)
        alive = kill_at_random(process, run, longest_s, rng)
        while alive:
            killed += 1
            if killed == kills:
                break
            alive = kill_at_random(stretto.start("resume", run.name), run, longest_s, rng)
        if RunView(run).status != "done":
            stretto.run("resume", run.name)
        assert compare_runs(reference, run) == []
        assert not list((run / "checkpoints").glob(".*")), "a killed save left something"
    print(f"{killed} kills over {runs} runs: no difference")


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_kills(stretto, variant):
    # pitfalls 8, 10
    kill_and_resume(stretto, VARIANTS[variant], kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "kills"), [("grpo", 14), ("grpo-staleness-1", 13), ("ppo", 13)])
def test_forty_kills(stretto, variant, kills):
    # pitfalls 8, 10
    kill_and_resume(stretto, VARIANTS[variant], kills=kills, seed=2)
