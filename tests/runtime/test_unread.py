"""A key that was given and that nothing reads is refused. Pitfall 25."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from stretto.config.algorithms import ALGORITHMS
from stretto.config.algorithms.inert import inert_of_part
from stretto.config.base import Section
from stretto.config.fields import choices, sections_of, takes_bool
from stretto.config.load import load_recipe, recipe_from_mapping
from stretto.config.merging import merge
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError
from stretto.recipes import FOLDER, packaged
from stretto.runtime.graphs import main_graph, warmup_graph
from stretto.runtime.unread import refuse_unread
from stretto.workflows.filling import settings_of


def check(**sections: object) -> None:
    recipe = recipe_from_mapping({"steps": 1, **sections})
    refuse_unread(recipe, [main_graph(recipe)])


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("critic.lr", {"critic": {"lr": 1e-3}}),
        ("sampling.n", {"algorithm": {"type": "sft"}, "sampling": {"n": 4}}),
        ("sampling.temperature", {"algorithm": {"type": "sft"}, "sampling": {"temperature": 0.5}}),
        ("reward.retries", {"reward": {"retries": 3}}),
        ("reward.max_dropped", {"reward": {"max_dropped": 0.5, "on_error": "retry"}}),
        ("reward.timeout_s", {"reward": {"timeout_s": 3, "workers": 0}}),
        ("algorithm.kl_kind", {"algorithm": {"type": "grpo", "kl_kind": "k2"}}),
        ("filter.zero_variance", {"algorithm": {"type": "sft"}, "filter": {"zero_variance": True}}),
        ("filter.reward.min", {"algorithm": {"type": "sft"}, "filter": {"reward": {"min": 0.1}}}),
        ("order.type=success", {"algorithm": {"type": "sft"}, "order": {"type": "success"}}),
        ("filter.score", {"filter": {"score": "correct", "length": {"max": 3}}}),
        ("evaluate.limit", {"evaluate": {"limit": 3, "at_start": False, "at_end": False}}),
    ],
)
def test_keys_without_effect_are_refused(key, sections):
    with pytest.raises(ConfigError, match=rf"^{key} is set, and .*Remove it"):
        check(**sections)


def test_all_are_named_at_once():
    with pytest.raises(ConfigError, match=r"critic\.lr.*\nreward\.retries"):
        check(critic={"lr": 1e-3}, reward={"retries": 3})


def test_keys_with_effect_are_not():
    check(algorithm={"type": "ppo"}, critic={"lr": 1e-3})
    check(warmup={"evaluate": {"every": None, "at_end": False}})  # its limit is a default, and nobody gave it
    check(reward={"on_error": "drop", "max_dropped": 0.5, "timeout_s": 3})
    check(algorithm={"type": "sft"}, filter={"length": {"max": 3}}, order={"type": "difficulty", "key": "answer"})
    check(algorithm={"type": "grpo"}, filter={"zero_variance": True}, order={"type": "success"})
    check(algorithm={"type": "grpo", "kl_coef": 0.1, "kl_kind": "k2"}, sampling={"temperature": 0.5})


@pytest.mark.parametrize("name", packaged())
def test_packaged_recipes_have_none(name):
    recipe = load_recipe(name, packaged=FOLDER).recipe
    graphs = [main_graph(recipe), *([warmup_graph(recipe)] if recipe.warmup else [])]
    refuse_unread(recipe, graphs)


@pytest.mark.parametrize(
    ("given", "key", "why"),
    [
        ({"scale": "none", "epsilon": 1e-4}, "epsilon", "scale=none divides by nothing"),
        ({"scale": "none", "ddof": 0}, "ddof", "scale=none divides by nothing"),
        ({"scale": "batch_std", "center": "batch_mean", "singleton": "raw"}, "singleton", "center=batch_mean compares"),
        ({"kl_clamp_in": 20.0}, "kl_clamp_in", "kl_coef=0 leaves the KL term out"),
        ({"kl_horizon": 10_000}, "kl_horizon", "kl_coef=0 leaves the KL term out"),
        ({"kl_coef": 0.1, "kl_horizon": 10_000}, "kl_horizon", "kl_target=null leaves the weight"),
        ({"correction": {}}, "correction", "its weights=none and its empty reject"),
        ({"empty_rows": "exclude"}, "empty_rows", "aggregate=token_mean counts no rows"),
        ({"type": "dapo", "overlong_penalty": 0, "overlong_buffer": 3}, "overlong_buffer", "charges nothing"),
        ({"type": "dapo", "overlong_penalty": 2, "overlong_buffer": 0}, "overlong_penalty", "charges nothing"),
        ({"type": "ppo", "whiten": False, "ddof": 0}, "ddof", "whiten=false leaves the advantages as they are"),
        ({"type": "ppo", "kl_coef": 0, "kl_kind": "k2"}, "kl_kind", "kl_coef=0 leaves the KL term out"),
        ({"type": "reinforce-pp", "singleton": "raw"}, "singleton", "baseline=false compares with no group"),
        ({"type": "reinforce-pp", "baseline": True, "gamma": 0.9}, "gamma", "baseline=true has one reward"),
        ({"type": "cpgd", "weight": "none", "cap": 2}, "cap", "weight=none does not read it"),
        ({"type": "cpgd", "drift_coef": 0.0, "log_ratio_clamp": 9.0}, "log_ratio_clamp", "drift_coef=0 leaves out"),
        (
            {"type": "composed", "advantages": {"type": "pass_at_k", "scale": "none", "epsilon": 0.1}},
            "advantages.epsilon",
            "scale=none divides by nothing",
        ),
        (
            {"type": "composed", "policy_loss": {"type": "dppo_tv"}, "proximal": "sampler"},
            "proximal",
            "policy_loss.type=dppo_tv has no ratio to old log-probs",
        ),
    ],
)
def test_settings_that_others_leave_unread_are_refused(given, key, why):
    with pytest.raises(ConfigError) as error:
        check(algorithm={"type": "grpo", **given})
    assert f"algorithm.{key} is set, and " in str(error.value)
    assert why in str(error.value)


def test_dynamic_sampling_beside_the_filter_that_it_stands_for_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm.dynamic_sampling is set, and filter.zero_variance decides"):
        check(algorithm={"type": "dapo", "dynamic_sampling": False}, filter={"zero_variance": True})


def test_what_a_preset_sets_is_not_refused():
    check(algorithm={"type": "grpo", "preset": "verl", "scale": "none"})


PAIRS = {"type": "jsonl", "path": "pairs.jsonl"}


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("evaluate.temperature", {"evaluate": {"temperature": 1.0}}),
        ("evaluate.sets.more.n", {"evaluate": {"sets": {"more": {"prompts": PAIRS, "n": 4, "temperature": 1.0}}}}),
    ],
)
def test_what_is_about_attempts_is_refused_where_pairs_are_evaluated(key, sections):
    learning = {"prompts": PAIRS, "algorithm": {"type": "dpo"}}
    with pytest.raises(ConfigError, match=rf"{re.escape(key)} is set, and .*evaluations are about pairs of answers"):
        check(**learning, **sections)
    attempts = merge({"evaluate": {"by": "attempts"}}, sections)
    check(**learning, **attempts)
    sums = {"sums": {"by": "attempts", "prompts": {"type": "builtin"}}}
    if "sets" not in sections["evaluate"]:  # then one set reads it
        check(**learning, **merge({"evaluate": {"sets": sums}}, sections))


# --- every field of every algorithm ---------------------------------------------------------------------------------

NUMBERS: dict[str, object] = {
    "lam": 0.5,
    "lam_value": 0.4,
    "proximal_alpha": 0.5,
    "length_alpha": 0.1,
    "gamma": 0.9,
    "dual_clip": 4.0,
    "ratio_max": 4.0,
    "clip_low": 0.3,
    "ratio_min": 0.5,
    "label_smoothing": 0.1,
    "correction": {"weights": "token"},
    "preset": None,
}
"""Values where a change of the default by half is not valid, or says nothing."""

SURROUNDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"kl_coef": 0.1},
    {"kl_coef": 0.1, "kl_target": 0.5},
    {"aggregate": "seq_mean_token_sum_norm"},
    {"proximal": "interpolate"},
    {"scale": "none"},
    {"whiten": False},
    {"weight": "none"},
    {"weight": "group_std"},
    {"baseline": True},
    {"drift_coef": 0.1},
    {"lam": None, "length_alpha": 0.2},
    {"lam": 0.9, "length_alpha": None},
    {"overlong_penalty": 0.0},
    {"center": "batch_mean"},
    {"teacher_logprobs": "sampled"},
    {"teacher_logprobs": "sampled", "proximal": "interpolate"},
    {"teacher_logprobs": "top_k", "top_k": 5},
    {"divergence": "jsd"},
)
"""Settings beside which a field is tried: in each of them it acts, or it is refused."""

ELSEWHERE = ("reference_every", "dynamic_sampling")
"""Fields that the driver and the pool read, and no node (``test_phases``, ``test_filters``)."""


@lru_cache(maxsize=4096)
def acting(kind: str, given: str) -> object:
    """What a run is made of: the settings of its graph that act, and those that are read outside it."""
    recipe = recipe_of(kind, given)
    parts = {name: reduced(value) for name, value in settings_of(recipe).items()}
    return {**parts, **{name: getattr(recipe.algorithm, name, None) for name in ELSEWHERE}}


def reduced(part: object) -> object:
    """A part of the graph's settings without what has no effect in it."""
    if not isinstance(part, Section):
        return part
    inert = inert_of_part(part)
    return {name: reduced(getattr(part, name)) for name in type(part).model_fields if name not in inert}


def written(given: dict[str, Any]) -> str:
    return "|".join(f"algorithm.{name}={json.dumps(value)}" for name, value in given.items())


def others(model: type[Section], name: str) -> Iterator[object]:
    """Values of a field that are not its default."""
    field = model.model_fields[name]
    default = field.get_default(call_default_factory=True)
    if choices(field):
        yield from (c for c in choices(field) if c not in (default, "detach"))  # which proximal=auto is here
    elif takes_bool(field):
        yield not default
    elif name in NUMBERS:
        yield NUMBERS[name]
    elif len(sections_of(field)) > 1:
        kinds = [section.model_fields["type"].default for section in sections_of(field)]
        yield from ({"type": kind} for kind in kinds if kind not in (default.type, "remax"))
    else:
        yield 2 if default is None else default * 2 or (3 if isinstance(default, int) else 0.5)
        if default and not isinstance(default, int):
            yield default / 2


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_field_of_every_algorithm_acts_or_is_refused(kind):
    model = ALGORITHMS[kind]
    for name in set(model.model_fields) - {"type", "preset"}:
        if len(choices(model.model_fields[name])) == 1:
            continue  # it says that nothing else would do
        outcomes = set[str]()
        for around in SURROUNDINGS:
            for value in others(model, name) if set(around) <= set(model.model_fields) else ():
                if value != around.get(name, ...):
                    outcomes.add(outcome(kind, around, name, value))
        assert "acts" in outcomes, f"{kind}.{name} never acts"
        assert "nothing" not in outcomes, f"{kind}.{name} has no effect somewhere, and is not refused"


def outcome(kind: str, around: dict[str, Any], name: str, value: object) -> str:
    """What becomes of a field with this value: it acts, it is refused, or nothing happens."""
    try:
        before = acting(kind, written(around))
    except ConfigError:
        return "around"  # not a recipe in the first place
    try:
        check_written(kind, written({**around, name: value}))
    except ConfigError:
        return "refused"
    return "acts" if acting(kind, written({**around, name: value})) != before else "nothing"


def check_written(kind: str, given: str) -> None:
    recipe = recipe_of(kind, given)
    refuse_unread(recipe, [main_graph(recipe)])


def recipe_of(kind: str, given: str) -> Recipe:
    """A recipe with its workflow named, which asks for nothing that a run would need besides (a teacher)."""
    overrides = given.split("|") if given else []
    return recipe_from_mapping({"steps": 1, "workflow": kind, "algorithm": {"type": kind}}, overrides)
