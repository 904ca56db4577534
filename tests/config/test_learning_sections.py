"""The sections of distill, dpo and reward-model: what is read with what, and what a recipe needs beside them."""

import pytest

from stretto.config.algorithms import Distillation
from stretto.config.algorithms.inert import inert_fields
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError

TEACHER = {"teacher": {"path": "t"}}


def algorithm(type: str, **settings):
    teacher = TEACHER if type == "distill" else {}
    return recipe_from_mapping({"steps": 1, **teacher, "algorithm": {"type": type, **settings}}).algorithm


@pytest.mark.parametrize(
    ("type", "settings", "message"),
    [
        ("distill", {"teacher_logprobs": "sampled", "divergence": "jsd"}, "estimate the reverse KL only"),
        ("distill", {"teacher_logprobs": "top_k"}, "top_k is missing with teacher_logprobs=top_k"),
        ("distill", {"top_k": 5}, "top_k=5 is set with teacher_logprobs=full"),
        ("distill", {"divergence": "jsd", "beta": 1.0}, "algorithm.beta=1.0 cannot be used"),
        ("dpo", {"label_smoothing": 0.5}, "label_smoothing=0.5 cannot be used"),
        ("dpo", {"beta": 0}, "algorithm.beta=0 cannot be used"),
        ("dpo", {"center_coef": 1}, "not read by algorithm.type=dpo, only by type reward-model"),
        ("reward-model", {"center_coef": -1}, "algorithm.center_coef=-1 cannot be used"),
    ],
)
def test_what_is_not_read_or_cannot_be_is_refused(type, settings, message):
    with pytest.raises(ConfigError, match=message):
        algorithm(type, **settings)


@pytest.mark.parametrize(
    ("type", "settings", "key"),
    [
        ("distill", {"beta": 0.2}, "beta"),
        ("distill", {"proximal": "sampler"}, "proximal"),
        ("distill", {"ratio_max": 2.0}, "ratio_max"),
        ("distill", {"correction": {"weights": "token"}}, "correction"),
        ("dpo", {"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing"),
    ],
)
def test_what_others_leave_without_effect(type, settings, key):
    assert key in inert_fields(algorithm(type, **settings))


def test_what_is_asked_of_a_teacher():
    assert algorithm("distill").over_vocabulary == Distillation()
    assert algorithm("distill", teacher_logprobs="sampled").over_vocabulary is None
    found = algorithm("distill", teacher_logprobs="top_k", top_k=8, divergence="jsd", beta=0.1).over_vocabulary
    assert found == Distillation(divergence="jsd", beta=0.1, top_k=8)


def test_distillation_without_a_teacher_is_refused():
    with pytest.raises(ConfigError, match=r"learns from a teacher, and teacher.path names none"):
        recipe_from_mapping({"steps": 1, "algorithm": {"type": "distill"}})


def test_one_attempt_is_enough_for_a_teacher():
    recipe = recipe_from_mapping({"steps": 1, **TEACHER, "algorithm": {"type": "distill"}, "sampling": {"n": 1}})
    assert recipe.sampling.n == 1


def test_several_updates_need_ratios_only_of_samples():
    assert algorithm("distill", minibatches=2).num_updates == 2
    with pytest.raises(ConfigError, match="proximal=detach makes every probability ratio 1"):
        algorithm("distill", minibatches=2, teacher_logprobs="sampled", proximal="detach")


def test_a_chosen_column_is_a_key_of_rows():
    rows = {"type": "jsonl", "path": "x", "chosen": "a", "rejected": "b"}
    prompts = recipe_from_mapping({"steps": 1, "prompts": rows}).prompts
    assert (prompts.chosen, prompts.rejected) == ("a", "b")  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"prompts\.chosen"):
        recipe_from_mapping({"steps": 1, "prompts": {"type": "builtin", "chosen": "a"}})
