"""Broken checkpoints, full disks and failures: the exit status tells the truth, and nothing is lost.

Signals and kills are in ``tests/lifetime/test_processes.py``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.store import RunView, compare_runs


def test_a_corrupted_newest_checkpoint_is_passed_over_and_said(stretto):
    # pitfall 10
    whole = stretto.train("whole")
    run = stretto.train("broken", ["steps=6"])
    weights = run / "checkpoints" / "step-6" / "policy.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(bytes(data))
    out, _ = stretto.run("resume", "broken", "steps=8")
    assert "checkpoint step-6 was passed over" in out
    assert compare_runs(whole, run) == []


def test_a_full_disk_while_saving(stretto):
    # pitfall 10: the old checkpoint is intact, the cause is named, and with room again the run goes on to the same bits
    runs = stretto.folder / "runs"
    runs.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=22m", "tmpfs", str(runs)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        _, err = stretto.run("train", stretto.short, "name=full", "warmup=null", status=3)
        assert "No space left on device" in err
        assert [p.name for p in (runs / "full/checkpoints").iterdir()] == ["step-2"]
        subprocess.run(["mount", "-o", "remount,size=200m", str(runs)], check=True)
        stretto.run("resume", "full")
        whole = stretto.train("whole", ["warmup=null"])
        assert compare_runs(whole, runs / "full") == []
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


def test_a_failing_run_exits_3_and_names_the_first_cause(stretto):
    # pitfall 34
    Path(stretto.folder, "bad.py").write_text("def reward(prompt, trajectory):\n    raise OSError('my disk')\n")
    _, err = stretto.run("train", stretto.short, "name=bad", "reward.use=bad:reward", status=3)
    assert "my disk" in err
    assert "Traceback" not in err
    assert RunView(stretto.folder / "runs" / "bad").status == "failed"


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(stretto):
    # pitfalls 21, 22
    one, two = stretto.train("one"), stretto.train("two", ["reward.workers=2"])
    assert compare_runs(one, two) == []
    assert compare_runs(one, stretto.train("other", ["seed=4"])) != []


def test_python_from_stdin_with_own_functions(stretto):
    script = """
import stretto

def even(prompt, trajectory):
    return float(trajectory.text[:1] in set("02468"))

run = stretto.train("grpo", prompts=["1+1=", {"prompt": "2+2=", "answer": "4"}], reward=even, steps=3, name="stdin",
                    sampling={"n": 4, "max_tokens": 3}, schedule={"groups_per_step": 2})
print(run.view.status, run.view.steps, len(run.samples()))
"""
    out = subprocess.run(
        [sys.executable, "-"],
        input=script,
        cwd=stretto.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert out.stdout.split() == ["done", "3", "6"], out.stderr
    _, err = stretto.run("resume", "stdin", "steps=5", status=2)
    assert "stretto.resume('stdin', reward=..., prompts=...)" in err


def test_from_a_running_event_loop_as_in_a_notebook(stretto):
    script = """
import asyncio, stretto
async def cell():
    return stretto.train("grpo", prompts=["1+1="], reward=lambda prompt, trajectory: 1.0, steps=2,
                         sampling={"n": 2, "max_tokens": 3}, schedule={"groups_per_step": 1})
print(asyncio.run(cell()).view.status)
"""
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=stretto.folder, capture_output=True, text=True, timeout=120
    )
    assert out.stdout.split() == ["done"], out.stderr


def test_eval_and_show(stretto):
    run = stretto.train("shown")
    out, _ = stretto.run("runs", "show", "--json")
    summary = json.loads(out)
    assert (summary["run"], summary["status"], summary["steps"], summary["seed"]) == ("shown", "done", 8, 3)
    assert [e["step"] for e in summary["evals"]] == [0, 4, 8]
    assert all(e["n"] == 20 and e["name"] == "held_out" for e in summary["evals"])
    out, _ = stretto.run("eval", "shown")
    last = 100 * summary["evals"][-1]["accuracy"]
    assert f"{last:.1f}%" in out
    exported, _ = stretto.run("eval", str(run / "model"), "prompts.max=9")
    assert f"{last:.1f}%" in exported or "on 20" in exported
