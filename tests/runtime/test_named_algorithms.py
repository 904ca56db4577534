"""Every named algorithm: the graph its recipe becomes, what is in it, and what is refused."""

import numpy as np
import pytest
from pydantic import ValidationError

from stretto.api import start
from stretto.config.algorithms import ALGORITHMS
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError
from stretto.graph import dump_graph, load_graph
from stretto.runtime.graphs import main_graph, warmup_graph
from stretto.workflows.nodes import NODES

TRAINED_ON_REWARDS = sorted(name for name in ALGORITHMS if name not in ("sft", "distill", "dpo", "reward-model"))


def graph_of(type: str, *, sampling=None, staleness=0, **settings):
    recipe = {"steps": 1, "algorithm": {"type": type, **settings}, "schedule": {"max_staleness": staleness}}
    teacher = {"teacher": {"path": "builtin:tiny-llama-char"}} if type == "distill" else {}
    return main_graph(recipe_from_mapping({**recipe, **teacher, "sampling": sampling or {}}))


def nodes_of(graph) -> set[str]:
    return {spec.use for spec in graph.nodes}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_graph_is_named_after_the_algorithm_and_survives_being_written(name):
    graph = graph_of(name)
    assert graph.name == name
    assert load_graph(dump_graph(graph), NODES) == graph


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_says_what_it_is(name):
    model = ALGORITHMS[name]
    assert model.__doc__
    assert model.__doc__.split("\n")[0].endswith(".")
    assert model.formula
    assert model.paper or name in ("sft", "composed")


@pytest.mark.parametrize("name", [n for n in TRAINED_ON_REWARDS if n not in ("opo", "gpg")])
@pytest.mark.parametrize(
    ("settings", "staleness", "proximal", "recomputed"),
    [
        ({}, 0, "detach", False),
        ({}, 1, "sampler", False),
        ({"minibatches": 2}, 0, "recompute", True),
        ({"update_epochs": 2}, 1, "sampler", False),
        ({"proximal": "interpolate"}, 1, "interpolate", True),
        ({"correction": {"weights": "token"}}, 0, "detach", True),
        ({"correction": {"weights": "token"}}, 1, "detach", True),
        ({"correction": {"weights": "token"}, "minibatches": 2}, 1, "recompute", True),
        ({"correction": {"reject": {"token": {}}}}, 1, "sampler", True),
    ],
)
def test_old_logprobs_follow_from_staleness_and_updates(name, settings, staleness, proximal, recomputed):
    graph = graph_of(name, staleness=staleness, **settings)
    assert graph.by_id["learn"].settings["proximal"] == proximal
    assert ("own" in graph.by_id) == recomputed
    assert ("corrected" in graph.by_id) == ("correction" in settings)


def test_the_reference_is_there_only_if_something_weighs_it():
    assert "ref" not in graph_of("grpo").by_id
    in_loss = graph_of("grpo", kl_coef=0.1)
    assert in_loss.by_id["learn"].inputs["ref"] == "ref"
    assert "ref" not in in_loss.by_id["credit"].inputs
    in_reward = graph_of("rloo", kl_coef=0.1)
    assert in_reward.by_id["credit"].inputs["ref"] == "ref"
    assert "ref" not in in_reward.by_id["learn"].inputs


def test_what_an_algorithm_adds_is_in_its_graph():
    assert graph_of("remax").by_id["group"].settings["greedy"] is True
    assert graph_of("grpo").by_id["group"].settings["greedy"] is False
    assert graph_of("composed", advantages={"type": "remax"}).by_id["group"].settings["greedy"] is True
    charged = graph_of("dapo", sampling={"max_tokens": 20})
    (charge,) = [spec for spec in charged.nodes if spec.use == "charge_overlong"]
    assert dict(charge.settings) == {"max_tokens": 20, "buffer": 4, "penalty": 1.0}
    assert "charge_overlong" not in nodes_of(graph_of("dapo", overlong_penalty=0.0))
    assert graph_of("vapo").by_id["learn"].settings["start"] == 50
    assert graph_of("vapo").by_id["learn"].settings["terms"].nll_coef == 0.1
    norm = graph_of("dr-grpo", sampling={"max_tokens": 12}).by_id["learn"].settings["updates"].norm
    assert norm == 12


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"type": "opo", "minibatches": 2}, "minibatches=2 cannot be used: it must be 1"),
        ({"type": "grpo", "proximal": "detach", "update_epochs": 2}, "proximal=detach makes every probability ratio 1"),
        ({"type": "grpo", "proximal": "sampler", "correction": {"weights": "token"}}, "would count it twice"),
        ({"type": "grpo", "proximal_alpha": 0.5}, "read by proximal=interpolate only"),
        ({"type": "grpo", "kl_target": 6.0}, "kl_coef=0 leaves that out"),
        ({"type": "grpo", "reference_every": 5}, "read only with kl_coef"),
        ({"type": "grpo", "norm": 5.0}, "norm"),
        ({"type": "ppo", "lam": None}, "without a lambda"),
    ],
)
def test_settings_that_contradict_are_refused_before_anything_starts(settings, told):
    # pitfalls 25, 35
    with pytest.raises((ConfigError, ValidationError), match=told):
        main_graph(recipe_from_mapping({"steps": 1, "algorithm": settings}))


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ({"type": "remax"}, "algorithm.type=remax takes a greedy attempt of one turn"),
        ({"type": "composed", "advantages": {"type": "remax"}}, "Set algorithm.advantages.type=rloo"),
        ({"type": "dapo"}, "limit of one turn.*Set algorithm.overlong_buffer=0"),
    ],
)
def test_what_is_about_one_turn_is_refused_with_an_environment(algorithm, told):
    recipe = {"steps": 1, "environment": {"use": "echo_game:Echo"}}
    with pytest.raises(ConfigError, match=told):
        recipe_from_mapping({**recipe, "algorithm": algorithm})
    recipe_from_mapping({**recipe, "algorithm": {"type": "dapo", "overlong_buffer": 0}})
    recipe_from_mapping({**recipe, "algorithm": algorithm, "workflow": "mine:flow"})


def test_groups_that_always_are_without_a_difference_are_refused_where_they_would_be_dropped():
    alone = {"steps": 1, "sampling": {"n": 1}}
    dynamic = {"type": "composed", "advantages": {"type": "reinforce_pp"}, "dynamic_sampling": True}
    with pytest.raises(ConfigError, match=r"algorithm.dynamic_sampling=true drops groups .* that is every group"):
        recipe_from_mapping({**alone, "algorithm": dynamic})
    recipe_from_mapping({**alone, "algorithm": dynamic, "filter": {"zero_variance": False}})
    recipe_from_mapping({**alone, "algorithm": {"type": "remax"}, "filter": {"zero_variance": True}})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_warm_up_by_an_algorithm_is_that_algorithm(name):
    recipe = {"steps": 1, "sampling": {"n": 3, "max_tokens": 10}, "schedule": {"max_staleness": 1}}
    recipe |= {"teacher": {"path": "builtin:tiny-llama-char"}}
    graph = warmup_graph(recipe_from_mapping({**recipe, "warmup": {"workflow": name}}))
    assert graph == graph_of(name, sampling=recipe["sampling"])


def test_a_warm_up_that_does_not_go_with_the_recipe_is_refused():
    recipe = {"steps": 1, "environment": {"use": "echo_game:Echo"}, "warmup": {"workflow": "remax"}}
    with pytest.raises(ConfigError, match=r"warmup.workflow=remax: algorithm.type=remax takes a greedy attempt"):
        warmup_graph(recipe_from_mapping(recipe))


def test_an_algorithm_is_not_named_as_the_workflow_of_another():
    with pytest.raises(ConfigError, match=r"workflow=gspo is what algorithm.type=gspo implies, and .* is grpo"):
        main_graph(recipe_from_mapping({"steps": 1, "workflow": "gspo"}))
    main_graph(recipe_from_mapping({"steps": 1, "workflow": "gspo", "algorithm": {"type": "gspo"}}))


def test_rollouts_that_lag_need_a_ratio_or_a_correction():
    with pytest.raises(ConfigError, match="gpg has no probability ratio"):
        graph_of("gpg", staleness=1)
    assert "corrected" in graph_of("gpg", staleness=1, correction={"weights": "token"}).by_id


def test_one_attempt_a_prompt_is_for_those_that_need_no_siblings():
    for name in ("ppo", "vapo", "reinforce-pp", "remax"):
        graph_of(name, sampling={"n": 1})
    with pytest.raises(ConfigError, match="gives dapo groups of one"):
        graph_of("dapo", sampling={"n": 1})
    with pytest.raises(ConfigError, match="gives reinforce-pp groups of one"):
        graph_of("reinforce-pp", baseline=True, sampling={"n": 1})


def test_the_weight_of_a_kl_term_is_steered_and_kept_from_step_to_step(tmp_path):
    algorithm = {"kl_coef": 0.01, "kl_target": 0.5, "kl_horizon": 100}
    tiny = {"sampling": {"n": 2, "max_tokens": 2}, "schedule": {"groups_per_step": 2}, "evaluate": {"at_end": False}}
    recipe = {"steps": 3, "runs_dir": f"{tmp_path}", "reward": {"use": "exact_match", "workers": 0}, **tiny}
    view = start(recipe_from_mapping({**recipe, "algorithm": algorithm}))
    coefs = [value for _, value in view.history("kl_coef")]
    assert coefs[0] == 0.01
    # The policy hardly moves, so the error is at its bound: the weight falls by a fifth of 4 rows / 100 rows a step.
    np.testing.assert_allclose(coefs, [0.01 * (1 - 0.2 * 4 / 100) ** step for step in range(3)], rtol=1e-9)
