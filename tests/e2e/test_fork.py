"""Forks, and what a run can not go on from: refused with the reason before anything is made or changed."""

import json
from pathlib import Path

import pytest

from stretto.api import evaluate, resume, start
from stretto.config.load import recipe_from_mapping
from stretto.errors import ResumeError, RewardError
from stretto.runtime.build import Given
from stretto.store import RunView, list_runs
from stretto.types import Prompt, Trajectory

FAKE = {
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "prompts": {"type": "builtin", "name": "addition", "max": 4},
    "sampling": {"n": 2, "max_tokens": 4},
    "schedule": {"groups_per_step": 3},
    "reward": {"use": "exact_match", "workers": 0},
}


def train(steps: int = 4, **sections: object) -> RunView:
    return start(recipe_from_mapping({"steps": steps, **FAKE, **sections}))


def stop_at(draw: int):
    """Reward and given of a run that fails at a draw, and the one it goes on with."""

    def fails(prompt: Prompt, trajectory: Trajectory) -> float:
        if trajectory.key.draw == draw:
            raise ValueError("stop")
        return 0.0

    return Given(reward=fails), Given(reward=lambda prompt, trajectory: 0.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["schedule.max_staleness=1", "backend.lr=0.5"],
        ["algorithm.type=sft"],
        ["warmup.max_steps=2", "warmup.groups_per_step=2"],
    ],
)
def test_a_fork_goes_on_from_there_and_can_itself_be_resumed_forked_and_evaluated(changes):
    parent = train(name="parent", algorithm={"type": "grpo", "scale": "none"} if "type" not in str(changes) else {})
    fork = resume(parent.path, ["steps=6", *changes], fork="fork")
    assert (fork.status, fork.steps, fork.info.parent) == ("done", 6, "parent")
    assert [e.step for e in fork.events if e.kind == "step"] == [4, 5]
    assert sum(e.kind == "attempt" for e in fork.all_events) == 1
    assert resume(fork.path, ["steps=7"]).steps == 7
    assert resume(fork.path, ["steps=8"], fork="again").steps == 8
    assert evaluate("again")["held_out"].n == 5
    assert RunView(parent.path).steps == 4


def test_a_fork_may_leave_out_the_warm_up(folder):
    parent = train(name="parent", warmup={"max_steps": 2, "groups_per_step": 2})
    fork = resume(parent.path, ["steps=5", "warmup=null"], fork="fork")
    assert resume(fork.path, ["steps=6"]).steps == 6


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["prompts.max=5"], "the prompts are not those"),
        (["seed=1"], "the prompts are not those"),
        (["algorithm.type=ppo"], "the workflow needs Model 'critic' .score, train., which it lacks"),
        (["algorithm.kl_coef=0.1"], "the workflow needs Model 'reference' .score., which it lacks"),
    ],
)
def test_a_fork_that_cannot_go_on_is_refused_and_leaves_nothing(folder, changes, why):
    parent = train(name="parent")
    with pytest.raises(ResumeError, match=f"checkpoint step-4: {why}.*model.path="):
        resume(parent.path, ["steps=6", *changes], fork="fork")
    assert [path.name for path in list_runs(folder / "runs")] == ["parent"]
    assert not (folder / "runs/fork").exists()


def test_a_resume_that_cannot_go_on_changes_nothing(folder):
    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(10)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = train(name="run", prompts={"type": "jsonl", "path": "data.jsonl"})
    before = (run.path / "events.jsonl").read_bytes()
    data.write_text("".join(json.dumps({**row, "answer": "?"}) + "\n" for row in rows))
    with pytest.raises(ResumeError, match="the prompts are not those"):
        resume(run.path, ["steps=6"])
    assert (run.path / "events.jsonl").read_bytes() == before
    assert RunView(run.path).status == "done"


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resume_never_trains_more_steps_than_it_is_given(staleness):
    # pitfall 6: 2 steps are done when draw 8 fails, and those that run ahead have begun
    first, second = stop_at(8)
    recipe = {"name": "run", "steps": 6, **FAKE, "reward": {"use": "python:r", "workers": 0}}
    recipe |= {"schedule": {"groups_per_step": 3, "max_staleness": staleness}, "evaluate": {"at_start": False}}
    recipe["prompts"] = {"type": "builtin", "name": "addition", "max": 4, "held_out": 0}
    with pytest.raises(RewardError):
        start(recipe_from_mapping(recipe), given=first)
    run = RunView(Path("runs/run"))
    taken = run.checkpoint().taken
    assert taken is not None
    begun = json.loads((taken.path / "state.json").read_text())["pool"]["next_step"]
    for steps in range(1, begun):
        with pytest.raises(ResumeError, match=f"has begun {begun} steps .* now given {steps} steps"):
            resume(run.path, [f"steps={steps}"], given=second)
    assert RunView(run.path).status == "failed"
    assert resume(run.path, [f"steps={begun}"], given=second).steps == begun


def test_groups_that_wait_need_their_phase_and_its_staleness():
    first, second = stop_at(8)
    recipe = {"name": "run", "steps": 6, **FAKE, "reward": {"use": "python:r", "workers": 0}}
    recipe |= {"schedule": {"groups_per_step": 3, "max_staleness": 1}, "evaluate": {"at_start": False, "at_end": False}}
    with pytest.raises(RewardError):
        start(recipe_from_mapping(recipe), given=first)
    with pytest.raises(ResumeError, match=r"groups wait in it that lag 1 step, and schedule.max_staleness=0"):
        resume(Path("runs/run"), ["schedule.max_staleness=0"], fork="fork", given=second)
    recipe |= {"name": "warm", "warmup": {"max_steps": 3, "workflow": "grpo", "groups_per_step": 3}}
    with pytest.raises(RewardError):
        start(recipe_from_mapping(recipe), given=first)
    with pytest.raises(ResumeError, match="taken in phase warmup, which the recipe does not have"):
        resume(Path("runs/warm"), ["warmup=null"], fork="fork", given=second)


@pytest.mark.parametrize(
    ("begun", "forked", "why"),
    [("grpo", "remax", "without a greedy attempt, and .* remax compares"), ("remax", "grpo", "with a greedy attempt")],
)
def test_groups_that_wait_need_the_greedy_attempt_of_their_algorithm(begun, forked, why):
    first, second = stop_at(8)
    recipe = {"name": "run", "steps": 6, **FAKE, "reward": {"use": "python:r", "workers": 0}}
    recipe |= {"schedule": {"groups_per_step": 3, "max_staleness": 1}, "evaluate": {"at_start": False, "at_end": False}}
    with pytest.raises(RewardError):
        start(recipe_from_mapping({**recipe, "algorithm": {"type": begun}}), given=first)
    with pytest.raises(ResumeError, match=f"groups wait in it {why}"):
        resume(Path("runs/run"), [f"algorithm={{type: {forked}}}"], fork="fork", given=second)
    assert resume(Path("runs/run"), ["backend.lr=0.5"], fork="same", given=second).status == "done"
