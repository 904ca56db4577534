"""Finds the rewards that a recipe names: built-in ones by name, others as ``module:function``, with their settings."""

from collections.abc import Mapping
from typing import cast

from stretto.config.rewards import RewardConfig
from stretto.environments.rewards.builtin import BUILTIN
from stretto.environments.rewards.contract import Part, Reward, Rewards
from stretto.environments.rewards.forms import FORMS, bind
from stretto.environments.rewards.settings import with_settings
from stretto.errors import ConfigError, nearest
from stretto.imports import find_named, is_named

__all__ = ["resolve_reward", "resolve_rewards"]


def resolve_rewards(config: RewardConfig, given: Reward | Mapping[str, Reward] | None = None) -> Rewards:
    """The rewards of ``config``, bound; ``given`` is a function in place of the one that ``use`` names, or by part.

    Raises ConfigError for a wrong name, setting or signature.
    """
    if config.parts is not None:
        functions: Mapping[str, Reward] = cast("Mapping[str, Reward]", given) if isinstance(given, Mapping) else {}
        if given is not None and not functions:
            raise ConfigError("a reward was passed, and reward.parts names others. Keep one of the two.")
        parts: list[Part] = []
        for name, part in config.parts.items():
            key = f"reward.parts.{name}"
            if name in functions:
                parts.append(bind(with_settings(functions[name], part.settings, key), name, weight=part.weight))
            else:
                parts.append(_part(name, part.use, part.settings, key, part.weight))
        return Rewards(parts=tuple(parts), named=True)
    assert config.use is not None
    if isinstance(given, Mapping):
        raise ConfigError("rewards were passed by part, and reward.use names a single one. Set reward.parts.")
    if given is None:
        return Rewards(parts=(_part(None, config.use, config.settings, "reward"),))
    function = with_settings(given, config.settings, "reward")
    name = config.use.removeprefix("python:") if config.use.startswith("python:") else None
    return Rewards(parts=(bind(function, name),))


def resolve_reward(use: str, settings: Mapping[str, object] | None = None, key: str = "reward") -> Reward:
    """The reward named ``use`` with its settings. ``key`` is where it is written. Raises ConfigError with the cause."""
    return with_settings(_find(use, key), settings or {}, key)


def _part(name: str | None, use: str, settings: Mapping[str, object], key: str, weight: float = 1.0) -> Part:
    own = use if name is None and use in BUILTIN else name
    return bind(resolve_reward(use, settings, key), own, weight=weight)


def _find(use: str, key: str) -> Reward:
    if use in BUILTIN:
        return BUILTIN[use]
    if not is_named(use):
        raise ConfigError(f"{key}.use={use!r} is no built-in reward and not module:function.{nearest(use, BUILTIN)}")
    if use.startswith("python:"):
        raise ConfigError(
            f"{key}.use={use} is a function that was passed to stretto.train, and it cannot be found by name. "
            "Run from Python again with reward=..., or put the function into a module and name it module:function."
        )
    found = find_named(use, f"{key}.use={use}")
    if not callable(found):
        raise ConfigError(f"{key}.use={use} is a {type(found).__name__}, not a function. Name a function of {FORMS}.")
    return found
