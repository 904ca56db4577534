"""Where two runs part: a change is planted in one of them, and its step, node and tensor are named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stretto.api import bisect, resume, start
from stretto.cli.main import main
from stretto.config.load import load_recipe, recipe_from_mapping
from stretto.errors import ConfigError
from stretto.recipes import FOLDER
from stretto.runtime.build import Given
from stretto.store import RunView
from stretto.types import Prompt, Trajectory

SHORT = Path(__file__).parents[1] / "e2e" / "short.yaml"
Reward = Callable[[Prompt, Trajectory], float]


def tokens(prompt: Prompt, trajectory: Trajectory) -> float:
    return float(trajectory.token_ids_T.sum() % 7)


def another(prompt: Prompt, trajectory: Trajectory) -> float:
    """Another reward of one attempt of step 3."""
    return tokens(prompt, trajectory) + (trajectory.key.draw == 13 and trajectory.key.sample == 2)


def short(name: str, *overrides: str, reward: Reward = tokens, evaluates: bool = False, **given: object) -> RunView:
    quiet = [] if evaluates else ["evaluate={every: null, at_start: false, at_end: false}"]
    keys = [*quiet, f"name={name}", "reward.use=python:tokens", "reward.workers=0", "save.every=2", "save.keep_last=9"]
    recipe = load_recipe(str(SHORT), [*keys, *overrides], packaged=FOLDER).recipe
    return start(recipe, given=Given(reward=reward, **given))


@pytest.fixture(autouse=True, scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """The run that the others are held against: a warm-up of 3 steps and a main phase of 5."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("bisecting"))
        yield short("one", "steps=5")


def test_equal_runs_are_the_same_and_it_is_said_with_status_0(one, capsys):
    short("two", "steps=5", "sampling.deadline_s=900")
    found = bisect("one", "two")
    assert found.parting is None
    assert (found.steps, found.groups) == (8, 3 * 16 + 5 * 4) and found.numbers > 100
    assert main(["runs", "bisect", "one", "two"]) == 0
    assert capsys.readouterr().out.startswith(
        "one and two are the same to the bit in all that both recorded: 8 steps, "
    )


def test_another_reward_is_found_at_its_step_node_and_attempt(one, capsys):
    short("judged", "steps=5", reward=another)
    parting = bisect("one", "judged").parting
    assert parting is not None
    assert (parting.phase, parting.step, parting.node) == ("main", 3, "scored")
    assert parting.name == "draw 13 sample 2.rewards.tokens"
    assert float(parting.b) - float(parting.a) == 1
    assert main(["runs", "bisect", "one", "judged"]) == 0
    assert "one and judged part in step 3 of phase main (from 0); before: 6 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "what"), [("backend.lr=2e-3", "weights"), ("backend.max_grad_norm=0.01", "weights")]
)
def test_another_learning_rate_from_a_step_on_is_found_in_the_weights_of_that_step(one, change, what):
    name = change.partition("=")[0].replace(".", "-")
    resume(one.path, ["steps=8", change], fork=name, given=Given(reward=tokens))
    further = shutil.copytree(one.path, one.path.with_name(f"further-{name}"))
    resume(further, ["steps=8"], given=Given(reward=tokens))
    found = bisect(further, name)
    parting = found.parting
    assert parting is not None
    assert (parting.phase, parting.step, parting.node) == ("main", 5, "learn")
    assert parting.what == f"{what} of policy after update 1"
    assert parting.same[-1] == "gradient of policy, update 1 (learn)"
    assert parting.name == "model.embed_tokens.weight" and parting.index.startswith("[")
    assert change.partition("=")[0] in [setting.where for setting in found.settings]


def test_another_gradient_is_found_before_the_weights(one):
    short("cut", "steps=5", "backend.microbatch_tokens=40")
    parting = bisect("one", "cut").parting
    assert parting is not None
    assert (parting.phase, parting.step, parting.node) == ("warmup", 0, "learn")
    assert parting.what == "gradient of policy, update 1"
    assert parting.a != parting.b and float(parting.a) == pytest.approx(float(parting.b), rel=1e-2)
    assert parting.same[0] == "weights of policy before the step"


def test_what_is_first_seen_in_rollouts_is_traced_to_the_update_before_them(one):
    """A weight decay changes no number of its own step: it shows in what is sampled with the weights after it."""
    short("plain", "steps=3", "warmup=null")
    short("decayed", "steps=3", "warmup=null", "backend.weight_decay=0.1")
    parting = bisect("plain", "decayed").parting
    assert parting is not None
    assert (parting.step, parting.node, parting.what) == (0, "learn", "weights of policy after update 1")
    assert parting.same[-1] == "gradient of policy, update 1 (learn)"


def test_what_is_sampled_otherwise_with_the_same_weights_is_told_so(one):
    changed = shutil.copytree(one.path, one.path.with_name("changed"))
    file = changed / "rollouts/main-1.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    cut = [line.replace('"finish":"length"', '"finish":"stop"', 1) if '"draw":9,' in line else line for line in lines]
    assert cut != lines
    file.write_text("".join(cut))
    parting = bisect("one", "changed").parting
    assert parting is not None
    assert (parting.step, parting.node, parting.what) == (2, "group", "what was sampled")
    assert parting.name.startswith("draw 9 ") and parting.name.endswith(".finish")
    assert "The weights before it are the same to the bit" in parting.note


def test_other_tokens_are_found_by_draw_sample_and_place(one):
    """With another learning rate what is sampled next differs, and it is traced to the weights, not to the tokens."""
    short("faster", "steps=5", "backend.lr=2e-3")
    parting = bisect("one", "faster").parting
    assert parting is not None and (parting.step, parting.node) == (0, "learn")
    short("shorter", "steps=5", "sampling.max_tokens=3")
    parting = bisect("one", "shorter").parting
    assert parting is not None
    assert (parting.phase, parting.step, parting.node) == ("main", 0, "group")
    assert parting.name == "draw 0 sample 0.tokens"
    assert "weights before it are the same to the bit: engine, sampling" in parting.note


def test_weights_that_differ_from_the_start_are_said_to(one, tmp_path):
    left = short("left", "steps=2", "warmup=null", "model.path=builtin:tiny-llama-char")
    other = short("right", "steps=2", "warmup=null", f"model.path={nudged(left.path / 'model', tmp_path / 'model')}")
    begin = short("begin", "steps=2", "warmup=null", f"model.path={left.path / 'model'}")
    parting = bisect("begin", "right").parting
    assert parting is not None and begin.steps == other.steps
    assert (parting.phase, parting.step, parting.node) == ("main", 0, None)
    assert (parting.what, parting.name) == ("weights of policy before the step", "model.norm.weight")
    assert "They begin with other weights" in parting.note


def nudged(model: Path, to: Path) -> Path:
    """The same model with one weight another."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(model, to)
    weights = dict(load_file(to / "model.safetensors"))
    weights["model.norm.weight"] = weights["model.norm.weight"] * np.float32(1.5)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_other_prompts_are_found_in_the_draws(one):
    short("seeded", "steps=2", "seed=4")
    parting = bisect("one", "seeded").parting
    assert parting is not None
    assert (parting.phase, parting.step, parting.what, parting.name) == ("warmup", 0, "what was drawn", "draw 0.prompt")


def test_another_evaluation_of_the_same_weights_is_told_from_other_weights(one):
    for name, how in (("evaluated", ""), ("tempered", ", temperature: 1, n: 4")):
        short(name, "steps=2", "warmup=null", f"evaluate={{every: 2, limit: 8{how}}}", evaluates=True)
    parting = bisect("evaluated", "tempered").parting
    assert parting is not None
    assert (parting.step, parting.what) == (0, "an evaluation after 0 steps")
    assert "what is evaluated, how, or on what machine differs" in parting.note


def test_other_nodes_are_named(one):
    short("ppo", "steps=2", "algorithm.type=ppo")
    parting = bisect("one", "ppo").parting
    assert parting is not None and (parting.phase, parting.step) == ("main", 0)
    assert parting.what == "weights of critic before the step" or parting.what == "what comes next"


def test_where_steps_cannot_be_made_again_the_records_tell_what_they_can(one):
    short("rolls", "steps=2", "debug.train=false")
    parting = bisect("one", "rolls").parting
    assert parting is not None
    assert "cannot be made again to find where that comes from: run 'rolls' trained nothing" in parting.note


def test_runs_without_a_step_in_common_are_refused(one):
    resume(one.path, ["steps=6"], fork="later", given=Given(reward=tokens))
    first = short("first", "steps=2", "warmup=null")
    with pytest.raises(ConfigError, match="first and later have no step in common"):
        bisect(first.path, "later")


def test_it_is_there_for_programs_too(one, capsys):
    fake = {"steps": 2, "engine": {"type": "fake"}, "backend": {"type": "fake"}}
    data = {
        "prompts": {"type": "builtin", "name": "addition", "max": 4},
        "reward": {"use": "exact_match", "workers": 0},
    }
    for name, lr in (("slow", 1e-5), ("fast", 2e-5)):
        start(recipe_from_mapping({**fake, **data, "name": name, "backend": {"type": "fake", "lr": lr}}))
    assert main(["runs", "bisect", "slow", "fast", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    assert (found["parting"]["node"], found["parting"]["name"]) == ("learn", "weight")
    assert found["settings"] == [{"where": "backend.lr", "a": "1e-05", "b": "2e-05"}]
