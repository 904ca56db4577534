"""Presets: what they set, what stays the user's, and what is written down of them."""

import pytest
from pydantic import ValidationError

from stretto.api import resume, start
from stretto.api.runs import recipe_of
from stretto.config.algorithms import ALGORITHMS, GrpoConfig, PolicyGradient
from stretto.config.algorithms.inert import inert_fields
from stretto.config.algorithms.presets import PRESETS
from stretto.config.fields import given_tree
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError
from stretto.runtime.graphs import main_graph
from stretto.runtime.unread import refuse_unread

ALL = [(framework, kind) for framework, by_kind in PRESETS.items() for kind in by_kind]


@pytest.mark.parametrize(("framework", "kind"), ALL)
def test_every_preset_makes_a_recipe_that_runs_nothing_inert(framework, kind):
    recipe = recipe_from_mapping({"steps": 1, "algorithm": {"type": kind, "preset": framework}})
    algorithm = recipe.algorithm
    assert isinstance(algorithm, PolicyGradient)
    assert algorithm.model_fields_set == {"type", "preset"}  # nobody gave the rest
    refuse_unread(recipe, [main_graph(recipe)])
    for name, value in PRESETS[framework][kind].settings.items():
        if name.startswith("kl_") or name == "empty_rows" or (name == "singleton" and algorithm.preset):
            continue  # some are left out where nothing reads them
        assert getattr(algorithm, name) == value, name
    inert = set(inert_fields(algorithm)) - {"kl_clamp_in", "kl_clamp_out", "kl_gradient", "singleton"}
    assert not inert & set(algorithm.followed)


def test_what_is_given_is_kept():
    algorithm = GrpoConfig(preset="verl", dual_clip=None, singleton="zero")
    assert (algorithm.dual_clip, algorithm.singleton) == (None, "zero")
    assert algorithm.followed == {"kl_clamp_in": 20.0, "kl_clamp_out": 10.0}
    assert algorithm.model_fields_set == {"preset", "dual_clip", "singleton"}


def test_values_that_nothing_would_read_are_left_out():
    assert GrpoConfig(preset="trl").empty_rows == "exclude"  # token_mean counts no rows
    assert GrpoConfig(preset="trl", aggregate="seq_mean_token_mean").empty_rows == "include"
    assert GrpoConfig(preset="verl", kl_kind="k2").kl_clamp_out is None  # verl clamps k3 alone
    assert GrpoConfig(preset="openrlhf", kl_kind="k2").kl_clamp_out == 10.0
    assert GrpoConfig(preset="verl", scale="none").singleton == "raw"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "ppo", "preset": "trl"}, r"preset=trl says nothing of algorithm.type=ppo. Presets of ppo: verl,"),
        ({"type": "vapo", "preset": "trl"}, r"says nothing of algorithm.type=vapo, and no preset does"),
        ({"preset": "nemo"}, r"algorithm.preset=nemo is not known. Did you mean 'nemo-rl'"),
        ({"type": "sft", "preset": "trl"}, r"algorithm.preset is not read by algorithm.type=sft"),
        ({"preset": 3}, r"algorithm.preset=3 cannot be used: it must be verl"),
    ],
)
def test_a_preset_that_says_nothing_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        recipe_from_mapping({"steps": 1, "algorithm": given})


def test_from_python_too():
    with pytest.raises(ValidationError, match=r"says nothing of algorithm\.type=cpgd, and no preset does"):
        ALGORITHMS["cpgd"].model_validate({"preset": "verl"})


def test_settings_of_parts_that_do_not_fit_are_refused_where_they_are_given():
    for given, message in (
        ({"type": "ppo", "lam": None}, "lam=null and length_alpha=null"),
        ({"ratio_max": 1.1}, r"ratio_max=1.1 must be above 1 \+ clip_high = 1.2"),
    ):
        with pytest.raises(ConfigError, match=message):
            recipe_from_mapping({"steps": 1, "algorithm": given})


def test_a_run_is_written_down_with_its_values(tmp_path):
    fake = {"engine": {"type": "fake"}, "backend": {"type": "fake"}, "reward": {"use": "exact_match", "workers": 0}}
    prompts = {"type": "builtin", "name": "addition", "max": 4}
    given = {"steps": 1, "runs_dir": f"{tmp_path}", "prompts": prompts, "schedule": {"groups_per_step": 2}, **fake}
    recipe = recipe_from_mapping({**given, "algorithm": {"type": "grpo", "preset": "verl", "clip_high": 0.3}})
    assert given_tree(recipe)["algorithm"] == {"type": "grpo", "preset": "verl", "clip_high": 0.3}
    view = start(recipe)
    assert view.info.config["algorithm"]["dual_clip"] == 3.0
    assert view.info.config["algorithm"]["singleton"] == "raw_over_1_plus_eps"
    kept = recipe_of(view).algorithm
    assert isinstance(kept, GrpoConfig)
    assert (kept.dual_clip, kept.clip_high) == (3.0, 0.3)
    with pytest.raises(ConfigError, match="a fork keeps the settings of its run"):
        resume(view.path, ["algorithm.preset=trl"], fork="other")
