"""What reaches a reward and what comes back of it in a real run on fakes: the occasion, the parts, what was logged."""

import asyncio

import pytest
from attempts import create

from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError, GraphError, RewardError
from stretto.graph import workflow
from stretto.runtime.attempt import attempt
from stretto.runtime.build import Given, prepare
from stretto.store import RunStore, RunView
from stretto.types import Prompt, StepReport
from stretto.workflows.nodes import advantages, collect, report, rollout, update_policy


def job_of(reward, given=None, /, **sections):
    tree = {
        "steps": 6,
        "engine": {"type": "fake"},
        "backend": {"type": "fake", "lr": 0.1},
        "prompts": {"type": "builtin", "name": "addition", "max": 4},
        "schedule": {"groups_per_step": 2, "max_staleness": 1},
        "sampling": {"n": 2, "max_tokens": 4},
        "reward": reward,
        "evaluate": {"every": 3},
        "save": {"every": 1},
        **sections,
    }
    return prepare(recipe_from_mapping(tree), Given(reward=given))


def drive(job, store, stop_at=None):
    async def main():
        stop = asyncio.Event()
        if stop_at is not None:
            store.subscribe(lambda e: stop.set() if e.kind == "step" and e.step == stop_at else None)
        await attempt(job, store, stop)

    with store:
        asyncio.run(main())
    return RunView(store.path)


def when(prompt, trajectory, context):
    context.log("steps", context.steps)
    context.log("phase", float(context.phase == "evaluation"))
    return {"step": float(context.step), "seed": float(context.seed), "version": context.version}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reward_knows_its_step_also_after_a_resume(tmp_path, workers):
    from stretto.errors import Interrupted
    from stretto.runtime.checkpoint import position_after

    job = job_of({"use": "python:when", "workers": workers}, when)
    whole = drive(job, create(job, tmp_path / "a"))
    assert whole.history("reward/step") == [(step, float(step)) for step in range(6)]
    assert whole.history("reward/version")[3] == (3, 2.0)  # staleness 1: sampled by the weights of the step before
    assert whole.history("logged/steps") == [(step, 6.0) for step in range(6)]
    assert set(whole.history("logged/phase")) == {(step, 0.0) for step in range(6)}
    evals = [e.body.metrics["held_out/reward"] for e in whole.all_events if e.kind == "eval"]
    assert evals == [0.0, 6.0, 12.0]  # steps done, and the version, which is as many
    store = create(job, tmp_path / "b")
    with pytest.raises(Interrupted):
        drive(job, store, stop_at=2)
    again = drive(job, RunStore.open(store.path, lambda checkpoint: position_after(checkpoint, job)))
    for name in ("reward/step", "reward/mean", "logged/steps"):
        assert again.history(name) == whole.history(name)


def test_parts_are_recorded_apart_and_the_record_gives_the_total(tmp_path):
    reward = {
        "parts": {
            "right": {"use": "exact_match", "weight": 2.0},
            "brief": {"use": "length", "weight": 0.5, "with": {"target": 4, "width": 8}},
        },
        "workers": 0,
    }
    job = job_of(reward, steps=2)
    run = drive(job, create(job, tmp_path))
    assert run.metrics["reward/brief"] == 1.0
    weights = {name: part["weight"] for name, part in run.info.config["reward"]["parts"].items()}
    for recorded in run.groups():
        for t in recorded.group.trajectories:
            assert set(t.rewards) == {"right", "brief"}
            assert t.reward == sum(weights[name] * score for name, score in t.rewards.items())


def test_a_failure_says_how_to_go_on(tmp_path):
    job = job_of({"use": "python:breaks", "workers": 0}, lambda prompt, trajectory: 1 / 0)
    with pytest.raises(
        RewardError, match=r"ZeroDivisionError.* Then go on with stretto\.resume\('run', reward=\.\.\.\)\."
    ):
        drive(job, create(job, tmp_path))


def test_wrong_parameters_are_refused_before_anything_starts():  # pitfall 25
    with pytest.raises(ConfigError, match=r"takes \(text, answer\), which is none of the accepted forms"):
        job_of({"use": "python:wrong"}, lambda text, answer: 1.0)


def test_advantages_of_groups_that_nobody_judged_are_refused():  # pitfall 2
    @workflow
    def unjudged(prompt: Prompt) -> StepReport:
        batch = collect(rollout(prompt, n=2))
        return report(update_policy(batch, advantages(batch)))

    recipe = recipe_from_mapping({"steps": 1, "engine": {"type": "fake"}, "backend": {"type": "fake"}})
    with pytest.raises(
        GraphError, match=r"'unjudged': node .* \(advantages\) makes advantages of rewards, and nothing"
    ):
        prepare(recipe, Given(workflow=unjudged))
