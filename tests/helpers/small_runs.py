"""A recipe of four steps on the real tiny model, for tests of what happens around steps."""

import numpy as np

from stretto.config.load import recipe_from_mapping

__all__ = ["digits", "moody", "odd_one_out", "recipe"]


def recipe(folder, name, **changes):
    sections = {
        "runs_dir": str(folder),
        "name": name,
        "steps": 4,
        "reward": {"use": "small_runs:digits", "workers": 0},
        "sampling": {"n": 4, "max_tokens": 6},
        "engine": {"slots": 8, "threads": 1},
        "backend": {"lr": 1e-3, "threads": 1},
        "schedule": {"groups_per_step": 4},
        "evaluate": {"every": 2, "limit": 8},
        "save": {"every": 2},
    }
    for key, value in changes.items():
        sections[key] = {**sections.get(key, {}), **value} if isinstance(value, dict) else value
    return recipe_from_mapping(sections)


def digits(prompt, trajectory) -> float:
    return float(np.sum(trajectory.token_ids_T) % 3)


def moody(prompt, trajectory) -> float:
    """``digits``, but for one draw."""
    if trajectory.key.draw == 9:
        raise ValueError("not this one")
    return digits(prompt, trajectory)


def odd_one_out(group) -> bool:
    """A filter that drops every third draw."""
    return group.draw % 3 != 1
