"""Keys of other libraries are answered with ours."""

import pytest

from stretto.config.checking import known_keys
from stretto.config.foreign import FOREIGN, called_here
from stretto.config.load import recipe_from_mapping
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError


def refused(mapping: dict, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        recipe_from_mapping(mapping, overrides)
    return str(caught.value)


def test_the_table_names_keys_that_there_are_for_names_that_there_are_not():
    assert {key for keys in FOREIGN.values() for key in keys} <= set(known_keys())
    assert not set(FOREIGN) & set(Recipe.model_fields)
    assert list(FOREIGN) == sorted(FOREIGN)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("max_steps=100", "steps"),
        ("max_completion_length=64", "sampling.max_tokens"),
        ("sampling.max_completion_length=64", "sampling.max_tokens"),
        ("backend.learning_rate=1e-6", "backend.lr"),
        ("num_generations=8", "sampling.n"),
        ("per_device_train_batch_size=8", "schedule.groups_per_step"),
        ("epsilon=0.2", "algorithm.clip_low"),
        ("algorithm.beta=0.04", "algorithm.kl_coef"),
        ("prompt=hello", "prompts"),
        ("reward_funcs=mine", "reward.use or reward.parts"),
        ("max_grad_norm=1", "backend.max_grad_norm"),
        ("data.max_response_length=64", "sampling.max_tokens"),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=3", "backend.lr_warmup"),
    ],
)
def test_a_key_of_another_library_is_named_as_here(given, ours):
    said = refused({"prompts": {"type": "builtin"}}, given)
    assert given.partition("=")[0] in said
    assert f"it is {ours} here." in said or f"Did you mean {ours}?" in said


def test_every_one_of_a_file_is_named():
    said = refused({"data": {"train_files": "a.parquet", "train_batch_size": 4, "odd": 1}, "learning_rate": 1e-6})
    assert said.splitlines()[:3] == [
        "data.train_files is not a key of recipes: it is prompts.path here.",
        "data.train_batch_size is not a key of recipes: it is schedule.groups_per_step here.",
        "learning_rate is not a key of recipes: it is backend.lr here.",
    ]


def test_our_own_names_misspelt_are_not_foreign():
    assert called_here("algorithm.clip_lo") == ""
    assert "Did you mean 'warmup'?" in refused({}, "warmpu.max_steps=3")
    a_set = refused({"prompts": {"type": "builtin"}}, "evaluate.sets.gsm.prompt=3")
    assert "Did you mean 'evaluate.sets.gsm.prompts'?" in a_set
