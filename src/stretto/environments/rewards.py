"""Rewards: what they are, ours by name, and how one is called on a group and its results are read.

Owns the contract of a reward and what counts as its failure. It does not own where a reward runs (``processes.py``,
``worker.py``) or what follows from a failure (``judge.py``).

A reward is ``(prompt, trajectory) -> float | dict[str, float] | None``, sync or async. A dict has a score per name;
the scalar reward is their sum. None, for the whole or for a name, means that it does not apply. Anything else, NaN
and infinities, an exception, and a trajectory to which no score applies, is a failure: an error is never a number.
"""

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

import numpy as np

from stretto.environments.faults import Fault, fault_of
from stretto.errors import ConfigError, RewardError, nearest
from stretto.imports import import_named
from stretto.types import Group, Prompt, Trajectory

__all__ = [
    "REWARDS",
    "Fault",
    "Reward",
    "Scores",
    "call_reward",
    "environment_score",
    "exact_match",
    "read_values",
    "resolve_reward",
    "reward_name",
    "settle",
    "total",
]

Reward: TypeAlias = Callable[[Prompt, Trajectory], object]
"""A reward; what it may return is in the docstring of this file. Typed loosely, because it is checked when read."""

Scores: TypeAlias = Mapping[str, float | None]
"""The scores of one trajectory by name; at least one is a number, and their sum is finite."""


def exact_match(prompt: Prompt, trajectory: Trajectory) -> float:
    """1.0 if the text of the trajectory is ``prompt.data["answer"]``, spaces around both left out; else 0.0."""
    if "answer" not in prompt.data:
        raise RewardError(
            f"the prompt {prompt.uid!r} has no answer to match. Give every prompt an answer, or use another reward."
        )
    return 1.0 if trajectory.text.strip() == str(prompt.data["answer"]).strip() else 0.0


def environment_score(prompt: Prompt, trajectory: Trajectory) -> object:
    """What the environment's ``score()`` gave at the end of the attempt."""
    if trajectory.info.get("environment") is None:
        raise RewardError(
            "its environment gave no score. Configure an environment whose score() returns a number, or use another "
            "reward."
        )
    return trajectory.info["environment"]


REWARDS: Mapping[str, Reward] = {"exact_match": exact_match, "environment": environment_score}
"""The built-in rewards by name."""


def resolve_reward(use: str) -> Reward:
    """The reward named ``use``: a built-in name or ``module:function``. Raises ConfigError with the cause."""
    if use in REWARDS:
        return REWARDS[use]
    module_name, colon, name = use.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"reward.use={use!r} is no built-in reward and not module:function.{nearest(use, REWARDS)}")
    if module_name == "python":
        raise ConfigError(
            f"reward.use={use} is a function that was passed to stretto.train, and it cannot be found by name. "
            "Run from Python again with reward=..., or put the function into a module and name it module:function."
        )
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise ConfigError(
            f"reward.use={use}: the module {module_name} cannot be imported ({error}). "
            "Check the name, and that its folder is on PYTHONPATH."
        ) from error
    found = getattr(module, name, None)
    if found is None:
        known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(f"reward.use={use}: the module {module_name} has no {name!r}.{nearest(name, known)}")
    if not callable(found):
        raise ConfigError(
            f"reward.use={use} is a {type(found).__name__}, not a function. Name a function of (prompt, trajectory)."
        )
    return cast("Reward", found)


def reward_name(reward: Reward) -> str:
    """The name under which the scores of ``reward`` are kept: a function's own, else its type's."""
    while isinstance(reward, partial):
        reward = reward.func
    name = getattr(reward, "__name__", None)
    return name if isinstance(name, str) else type(reward).__name__


# --- calling -------------------------------------------------------------------------------------------------------


def call_reward(reward: Reward, group: Group) -> list[object] | Fault:
    """What ``reward`` returns for each sibling, in order; awaitables are not waited for."""
    values: list[object] = []
    for trajectory in group.trajectories:
        try:
            values.append(reward(group.prompt, trajectory))
        except BaseException as error:  # noqa: BLE001 - becomes a Fault, for the policy; a Rust panic or an exit too
            _close(values)
            return fault_of(trajectory.key.sample, error)
    return values


async def settle(values: Sequence[object], group: Group) -> list[object] | Fault:
    """Wait for the awaitables among ``values``, all at the same time. The first sibling's failure is the one told."""
    settled = await asyncio.gather(*(_wait(v, t) for v, t in zip(values, group.trajectories, strict=True)))
    return next((value for value in settled if isinstance(value, Fault)), settled)


async def _wait(value: object, trajectory: Trajectory) -> object:
    if not inspect.isawaitable(value):
        return value
    try:
        return await cast("Awaitable[object]", value)
    except GeneratorExit:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return fault_of(trajectory.key.sample, error)


def _close(values: Sequence[object]) -> None:
    """Let go of coroutines that nobody will wait for."""
    for value in values:
        if inspect.iscoroutine(value):
            value.close()


# --- reading -------------------------------------------------------------------------------------------------------


def read_values(name: str, values: Sequence[object], group: Group) -> list[Scores] | Fault:
    """The scores of each sibling from what the reward called ``name`` returned for it."""
    rows: list[Scores] = []
    for value, trajectory in zip(values, group.trajectories, strict=True):
        try:
            rows.append(_read(name, value))
        except BaseException as error:  # noqa: BLE001 - a value of the user's own type may raise anything
            return fault_of(trajectory.key.sample, error)
    return rows


def total(scores: Scores) -> float:
    """The scalar reward: the sum of the scores that apply."""
    if len(scores) == 1:
        return next(iter(scores.values())) or 0.0
    return math.fsum(score for score in scores.values() if score is not None)


def _read(name: str, value: object) -> Scores:
    if type(value) is float and math.isfinite(value):  # by far the most frequent
        return {name: value}
    scores: dict[str, float | None] = {}
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise RewardError(f"it returned a dict with the key {key!r}. Keys are names.")
            scores[key] = _number(part)
    else:
        scores[name] = _number(value)
    if all(score is None for score in scores.values()):
        raise RewardError(f"it returned {value!r}: no reward applies. Return a number for at least one name.")
    try:
        finite = math.isfinite(total(scores))
    except OverflowError:
        finite = False
    if not finite:
        raise RewardError(f"it returned {value!r}, whose sum is not finite. Return smaller numbers.")
    return scores


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = cast("object", value.item())
    if not isinstance(value, numbers.Real):
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise RewardError(f"it returned {shown}, a {type(value).__name__}. Return a number, a dict of them, or None.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RewardError(f"it returned {value!r}. Return a finite number, or None where it does not apply.")
    return number
