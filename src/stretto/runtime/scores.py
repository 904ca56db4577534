"""Refuses, before a run is created, scores that are asked for and that nothing will give.

Owns what can be told from names and signatures; a reward that returns a dict of scores is only known once it did.
"""

from collections.abc import Iterable, Mapping

from stretto.config.recipe import Recipe
from stretto.environments.contract import Factory
from stretto.environments.rewards import Rewards
from stretto.environments.rewards.builtin.played import EnvironmentScore
from stretto.errors import ConfigError, nearest
from stretto.runtime.eval_sets import EvalSet

__all__ = ["check_scores"]


def check_scores(
    recipe: Recipe,
    rewards: Rewards,
    set_rewards: Mapping[str, Rewards],
    sets: Iterable[EvalSet],
    environment: Factory | None,
) -> None:
    """Raises ConfigError for a reward that waits for an environment's score in vain, or for what counts by no score."""
    for key, each in {"reward": rewards, **set_rewards}.items():
        for part in each.parts:
            if part.function is EnvironmentScore or isinstance(part.function, EnvironmentScore):
                where = f"{key}.parts.{part.name}" if each.named else key
                _check_environment(where, recipe, environment)
    asked = {"filter.score": recipe.filter.score, "order.score": getattr(recipe.order, "score", None)}
    for key, score in asked.items():
        if score is not None and rewards.score_names is not None and score not in rewards.score_names:
            raise ConfigError(
                f"{key}={score!r} is none of the rewards, which are {', '.join(rewards.score_names)}."
                f"{nearest(score, rewards.score_names)} Set it to one of them, or leave it out for the total."
            )
    for one in sets:
        names = (set_rewards[one.judge] if one.judge else rewards).score_names
        if one.score is not None and names is not None and one.score not in names:
            raise ConfigError(
                f"the evaluation set {one.name} counts by evaluate.score={one.score!r}, and its reward gives "
                f"{', '.join(names)}.{nearest(one.score, names)} Set it to one of them, or leave it out for the total."
            )


def _check_environment(key: str, recipe: Recipe, environment: Factory | None) -> None:
    if recipe.environment is None:
        raise ConfigError(
            f"{key}.use=environment is the score of an environment, and the recipe has none. Set environment.use, or "
            "take another reward."
        )
    if isinstance(environment, type) and not hasattr(environment, "score") and not hasattr(environment, "__getattr__"):
        raise ConfigError(
            f"{key}.use=environment is what score() of the environment returns, and {recipe.environment.use} has no "
            "method score. Write one that returns a number, or take another reward."
        )
