"""A key that was given and that nothing reads is refused. Pitfall 25."""

import pytest

from stretto.config.load import load_recipe, recipe_from_mapping
from stretto.errors import ConfigError
from stretto.recipes import FOLDER, packaged
from stretto.runtime.graphs import main_graph, warmup_graph
from stretto.runtime.unread import refuse_unread


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
    check(reward={"on_error": "drop", "max_dropped": 0.5, "timeout_s": 3})
    check(algorithm={"type": "sft"}, filter={"length": {"max": 3}}, order={"type": "difficulty", "key": "answer"})
    check(algorithm={"type": "grpo"}, filter={"zero_variance": True}, order={"type": "success"})
    check(algorithm={"type": "grpo", "kl_coef": 0.1, "kl_kind": "k2"}, sampling={"temperature": 0.5})


@pytest.mark.parametrize("name", packaged())
def test_packaged_recipes_have_none(name):
    recipe = load_recipe(name, packaged=FOLDER).recipe
    graphs = [main_graph(recipe), *([warmup_graph(recipe.warmup)] if recipe.warmup else [])]
    refuse_unread(recipe, graphs)
