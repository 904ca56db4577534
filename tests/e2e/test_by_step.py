"""Values by step in whole runs: they act from their step on, to the same bits, also across a stop."""

from pathlib import Path

import pytest

from stretto.store import RunView, StepBody, compare_runs

BY_STEP = [
    "warmup=null",
    "evaluate.every=null",
    "prompts.held_out=0",
    "save.every=3",
    "publish.check_weights=off",
    "sampling.temperature={0: 1.0, 3: 0.5}",
    "backend.lr={at: {0: 1e-3, 4: 2e-4}, between: linear}",
    "algorithm.kl_coef={0: 0, 2: 0.1}",
]
AHEAD = ["schedule.max_staleness={0: 1, 4: 0}"]


def steps_of(run: Path) -> list[dict[str, float]]:
    return [dict(e.body.metrics) for e in RunView(run).events if isinstance(e.body, StepBody)]


@pytest.mark.parametrize("more", [[], AHEAD], ids=["on_policy", "ahead"])
def test_values_change_on_their_step_and_a_stop_changes_no_bit(stretto, more):
    whole = stretto.train("whole", [*BY_STEP, *more, "steps=7"])
    again = stretto.train("again", [*BY_STEP, *more, "steps=7"])
    assert compare_runs(whole, again) == []
    # It goes on from step 3, where temperature and rate change; ahead, groups of step 3 wait in the checkpoint.
    run = stretto.train("stopped", [*BY_STEP, *more, "steps=6"])
    weights = run / "checkpoints" / "step-6" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    out, _ = stretto.run("resume", "stopped", "steps=7")
    assert "checkpoint step-6 was passed over" in out
    assert compare_runs(whole, run) == []

    steps = steps_of(whole)
    assert [s["by_step/sampling.temperature"] for s in steps] == [1.0] * 3 + [0.5] * 4
    assert [s["by_step/algorithm.kl_coef"] for s in steps] == [0.0] * 2 + [0.1] * 5
    assert ["ref_kl" in s for s in steps] == [False] * 2 + [True] * 5
    assert [s["lr"] for s in steps] == pytest.approx([1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 2e-4, 2e-4])
    assert [s["lr"] for s in steps] == [s["by_step/backend.lr"] for s in steps]
    if more:
        assert [s["staleness/max"] for s in steps] == [0, 1, 1, 1, 0, 0, 0]
    else:  # the ratio of a first update is 1 at either temperature
        assert max(s["sampler_gap_max"] for s in steps) < 1e-5
        assert all(abs(s["sampler_ratio"] - 1) < 1e-5 for s in steps)


def test_the_temperature_of_a_draw_is_that_of_its_step(stretto):
    run = stretto.train("ahead", [*BY_STEP, *AHEAD, "steps=5"])
    found = {}
    for step in range(5):
        rows = [t for group in RunView(run).groups("main", step) for t in group.group.trajectories]
        found[step] = {t.temperature for t in rows}
    assert found == {0: {1.0}, 1: {1.0}, 2: {1.0}, 3: {0.5}, 4: {0.5}}


def test_check_shows_each_schedule(stretto):
    out, _ = stretto.run("check", stretto.short, *BY_STEP, *AHEAD)
    assert "sampling.temperature by step: 1 from step 0, 0.5 from step 3" in out
    assert "backend.lr by step: 0.001 at step 0, 0.0002 at step 4, on a straight line between" in out
    assert "schedule.max_staleness by step: 1 from step 0, 0 from step 4" in out
    assert "algorithm.kl_coef by step: 0 from step 0, 0.1 from step 2" in out
