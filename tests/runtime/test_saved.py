"""One half of a run alone: rollout that trains nothing, and training on what another run recorded."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from stretto.api import check, resume, start
from stretto.config.load import load_recipe, recipe_from_mapping
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError, PoolError
from stretto.recipes import FOLDER
from stretto.runtime.build import Given
from stretto.store import RunView, compare_runs
from stretto.types import Group, Prompt, Trajectory

SHORT = Path(__file__).parents[1] / "e2e" / "short.yaml"

FAKE = {
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "prompts": {"type": "builtin", "name": "addition", "max": 4},
    "sampling": {"n": 2, "max_tokens": 4},
    "schedule": {"groups_per_step": 3},
    "reward": {"use": "exact_match", "workers": 0},
    "evaluate": {"at_start": False, "at_end": False},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def short(*overrides: str) -> RunView:
    """The short recipe with a reward that differs from attempt to attempt, and no evaluations."""
    quiet = "evaluate={every: null, at_start: false, at_end: false}"
    return start(recipe_of(quiet, "reward.use=python:tokens", *overrides), given=Given(reward=tokens))


def tokens(prompt: Prompt, trajectory: Trajectory) -> float:
    return float(trajectory.token_ids_T.sum() % 7)


def recipe_of(*overrides: str) -> Recipe:
    return load_recipe(str(SHORT), list(overrides), packaged=FOLDER).recipe


def fake(name: str, steps: int = 4, **sections: object) -> RunView:
    return start(recipe_from_mapping({"steps": steps, "name": name, **FAKE, **sections}))


def policy(view: RunView) -> bytes:
    return (view.path / "model/model.safetensors").read_bytes()


def test_training_on_recorded_groups_alone_gives_the_bits_of_the_run_that_sampled_them():
    whole = short("name=whole")
    trained = short("name=trained", "debug.rollouts_from=whole")
    assert compare_runs(whole.path, trained.path) == []
    assert policy(whole) == policy(trained)
    assert {e.body.state for e in trained.events if e.kind == "group"} == {"finished"}


def test_rollout_alone_records_groups_and_changes_no_weight():
    run = short("name=run", "debug.train=false", "warmup=null")
    assert run.steps == 8 and len(run.groups()) == 32
    assert all(t.reward is not None for g in run.groups() for t in g.group.trajectories)
    assert "loss" not in run.metrics and "reward/mean" in run.metrics
    first, last = (load_file(run.path / f"checkpoints/step-{step}/policy.safetensors") for step in (6, 8))
    assert all((first[name] == last[name]).all() for name in first)
    trained = short("name=trained", "debug.rollouts_from=run", "warmup=null")
    assert trained.metrics["reward/mean"] == run.metrics["reward/mean"] and trained.metrics["grad_norm"] > 0
    assert policy(trained) != policy(run)


def test_a_rollout_alone_goes_on_after_a_resume():
    run = fake("run", debug={"train": False})
    assert resume(run.path, ["steps=6"]).steps == 6


def test_training_on_recorded_groups_goes_on_after_a_resume():
    """Also with groups that wait, drawn ahead."""
    whole = short("name=whole", "schedule.max_staleness=1", "warmup=null")
    short("name=trained", "schedule.max_staleness=1", "warmup=null", "debug.rollouts_from=whole", "steps=3")
    trained = resume(Path("runs/trained"), ["steps=8"], given=Given(reward=tokens))
    assert policy(whole) == policy(trained)
    assert [r.group.draw for r in trained.groups()] == list(range(32))


def test_filters_judge_recorded_groups_anew_and_failed_draws_stay_failed():
    def fails(prompt: Prompt, trajectory: Trajectory) -> float:
        if trajectory.key.draw in (1, 5):
            raise ValueError("no")
        return float(trajectory.key.draw)

    def drops(group: Group) -> bool:
        return group.draw != 2

    policy = {"use": "python:fails", "on_error": "drop", "max_dropped": 0.9, "workers": 0}
    recipe = {"steps": 4, **FAKE, "reward": policy, "filter": {"use": "python:drops"}}
    given = Given(reward=fails, filter=drops)
    one = start(recipe_from_mapping({**recipe, "name": "one"}), given=given)
    other = start(recipe_from_mapping({**recipe, "name": "two", "debug": {"rollouts_from": "one"}}), given=given)
    assert compare_runs(one.path, other.path) == []
    assert sum(e.kind == "group" and e.body.state == "dropped" for e in other.events) == 2
    with pytest.raises(PoolError, match="needs draw 15 in place of one that was dropped, and one has recorded no"):
        start(
            recipe_from_mapping({**recipe, "name": "three", "debug": {"rollouts_from": "one"}}),
            given=Given(reward=fails, filter=lambda group: group.draw not in (2, 14)),
        )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": 1}, "its draw 0 is of prompt .* Set prompts, order, seed and model.path as they were there"),
        ({"prompts": {"type": "builtin", "name": "addition", "max": 3}}, "its draw 0 is of prompt"),
        ({"steps": 5}, "has no group of draw 12, and 15 draws are asked for. Set steps=4 or fewer"),
        ({"debug": {"rollouts_from": "onee"}}, "there is no run 'onee' .*Did you mean 'one'"),
    ],
)
def test_draws_that_do_not_fit_are_refused_before_a_run_is_made(changes, why):
    fake("one")
    with pytest.raises(ConfigError, match=why):
        fake("two", **{"debug": {"rollouts_from": "one"}, "steps": 4, **changes})
    assert not Path("runs/two").exists()


def test_groups_of_another_schedule_are_refused():
    fake("one")
    with pytest.raises(PoolError, match=r"draw 3 of one was sampled by weights 1, and step 0 takes it"):
        fake("two", debug={"rollouts_from": "one"}, schedule={"groups_per_step": 6}, steps=2)


def test_a_run_without_a_main_phase_has_nothing_to_train_on():
    one = fake("one")
    for file in (one.path / "rollouts").glob("main-*"):
        file.unlink()
    with pytest.raises(ConfigError, match="has recorded no group of a main phase"):
        fake("two", debug={"rollouts_from": "one"})


def test_both_halves_cannot_be_left_out():
    with pytest.raises(ConfigError, match="leave nothing to do: neither half would run"):
        recipe_from_mapping({"steps": 1, "debug": {"train": False, "rollouts_from": "x"}})


def test_a_check_says_which_half_runs():
    assert "phase main samples and records groups, and trains nothing" in check(recipe_of("debug.train=false"))
