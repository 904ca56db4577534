"""Environments: what one is, how it is found by name, and how its methods are called and what they return is read.

Owns the contract and what counts as a failure. It does not own where an environment lives (``sessions.py``,
``player.py``) or what follows from a failure (``policy.py``).

An environment is made anew for every attempt, ``Class(prompt, **with)``, and has ``start()`` and ``reply(text)``. Each
returns what is said to the policy next: a string, a message or several, or None. None from ``start`` says nothing,
None from ``reply`` ends the episode. Optional: ``score()``, read when the episode ends, a number, a dict of numbers by
name, or None; and ``close()``, called last. All of them may be ``async``. Anything else is a failure.

Before each call the global random states of ``random`` and ``numpy`` are set from the attempt's seed, and put back
after it, so that an environment does the same in any process on any day.
"""

import inspect
import math
import numbers
import random
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias, cast

import numpy as np

from stretto.environments.faults import Fault, fault_of
from stretto.errors import ConfigError, RewardError, nearest
from stretto.imports import find_named, is_named
from stretto.types import Json, Message, Prompt

__all__ = [
    "Factory",
    "Said",
    "Stage",
    "Verb",
    "check_factory",
    "check_settings",
    "environment_name",
    "resolve_environment",
    "said_of",
]

Factory: TypeAlias = Callable[..., object]
"""What makes an environment: a class, or a function of ``(prompt, **with)``."""

Said: TypeAlias = str | tuple[Message, ...] | None
"""What an environment says next."""

Verb: TypeAlias = Literal["start", "reply", "end"]
"""What can be asked of an episode."""


def resolve_environment(use: str) -> Factory:
    """The environment named ``module:Class``. Raises ConfigError with the cause."""
    if not is_named(use):
        raise ConfigError(f"environment.use={use!r} is not module:Class. Name a class of (prompt, **with) that way.")
    if use.startswith("python:"):
        raise ConfigError(
            f"environment.use={use} is a class that was passed to stretto.train, and it cannot be found by name. "
            "Run from Python again with environment=..., or put the class into a module and name it module:Class."
        )
    found = find_named(use, f"environment.use={use}")
    check_factory(use, found)
    return cast("Factory", found)


def check_factory(use: str, factory: object) -> None:
    """Refuse what cannot make an environment: not callable, or a class without the two methods."""
    if not callable(factory):
        raise ConfigError(
            f"environment.use={use} is a {type(factory).__name__}, not a class. Name a class of (prompt, **with)."
        )
    missing = [name for name in ("start", "reply") if isinstance(factory, type) and not hasattr(factory, name)]
    if missing:
        raise ConfigError(
            f"environment.use={use} has no method {' and no method '.join(missing)}. An environment has start() and "
            "reply(text); add what is missing."
        )


def check_settings(use: str, factory: Factory, settings: Mapping[str, Json]) -> None:
    """Refuse settings (``with``) that it has no parameter for, or lacks, and methods that cannot be called as they are.

    Told by signatures: nothing of the user's runs here. What does not show one is left to the first attempt.
    """
    parameters = _parameters(factory)
    if parameters is not None:
        _check_parameters(use, parameters, settings)
    if not isinstance(factory, type):
        return
    for name, given in (("start", ("self",)), ("reply", ("self", "text")), ("score", ("self",)), ("close", ("self",))):
        method = inspect.getattr_static(factory, name, None)
        if not inspect.isfunction(method):  # a static method, a wrapper of some kind, or none
            continue
        try:
            inspect.signature(method).bind(*given)
        except TypeError as error:
            takes = f"{name}({', '.join(given[1:])})"
            raise ConfigError(
                f"environment.use={use}: its method {name} cannot be called as {takes} ({error}). Write it so that it "
                "can; more parameters need defaults."
            ) from error


def _check_parameters(use: str, parameters: Sequence[inspect.Parameter], settings: Mapping[str, Json]) -> None:
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not by_place and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(
            f"environment.use={use} takes no prompt. An environment is made as Class(prompt, **with) for every "
            "attempt: give its __init__ (or the function) a parameter prompt."
        )
    named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [p.name for p in named]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"environment.with.{name} is set, and {use} has no parameter {name} beside the prompt."
                    f"{nearest(name, known) if known else ' It takes none; remove it.'}"
                )
    lacking = [p.name for p in named if p.default is p.empty and p.name not in settings]
    if lacking:
        raise ConfigError(
            f"environment.use={use} needs {', '.join(lacking)} beside the prompt. Set environment.with.{lacking[0]}"
            "=VALUE, or give the parameter a default."
        )


def _parameters(factory: Factory) -> Sequence[inspect.Parameter] | None:
    """What it takes, or None if it does not say."""
    try:
        return list(inspect.signature(factory).parameters.values())
    except (ValueError, TypeError):
        return None


def environment_name(factory: Factory) -> str:
    """The name of an environment for messages."""
    name = getattr(factory, "__name__", None)
    return name if isinstance(name, str) else type(factory).__name__


class Stage:
    """The episodes that live in this process, by number."""

    def __init__(self, factory: Factory, settings: Mapping[str, Json]) -> None:
        self._factory, self._settings = factory, dict(settings)
        self._playing: dict[int, object] = {}

    async def call(self, episode: int, verb: Verb, argument: object, seed: int) -> "Json | Fault":
        """Ask an episode: ``start`` takes the Prompt, ``reply`` the policy's text, ``end`` nothing.

        The answer is JSON: what is said (``said_of`` reads it), or at the end the score.
        """
        try:
            if verb == "start":
                with seeded(seed):
                    playing = self._factory(cast("Prompt", argument), **self._settings)
                    self._playing[episode] = playing
                    value: object = _method(playing, "start")()
                return _write_said(await _settled(value))
            playing = self._playing[episode]
            if verb == "reply":
                with seeded(seed):
                    value = _method(playing, "reply")(argument)
                return _write_said(await _settled(value))
            return await self._end(playing, seed)
        except GeneratorExit:
            raise
        except BaseException as error:
            # Becomes a Fault, for the policy; an exit too. A cancellation of this very task is the parent's.
            if _is_cancelled(error):
                raise
            return fault_of(None, error)
        finally:
            if verb == "end":
                self.forget(episode)

    async def _end(self, playing: object, seed: int) -> Json:
        score: Json = None
        if hasattr(playing, "score"):
            with seeded(seed):
                value: object = _method(playing, "score")()
            score = read_score(await _settled(value))
        if hasattr(playing, "close"):
            await _settled(_method(playing, "close")())
        return score

    def forget(self, episode: int) -> None:
        """Let an episode go without a word to it."""
        self._playing.pop(episode, None)


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """The global random states are set inside, and what they were outside."""
    before, before_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


async def _settled(value: object) -> object:
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value


def _is_cancelled(error: BaseException) -> bool:
    import asyncio  # not at the top: only a failure needs it

    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _method(playing: object, name: str) -> Callable[..., object]:
    method = getattr(playing, name, None)
    if not callable(method):
        raise RewardError(
            f"it made a {type(playing).__name__}, which has no method {name}. An environment has start() and "
            "reply(text)."
        )
    return method


# --- reading -------------------------------------------------------------------------------------------------------


def said_of(answer: Json) -> Said:
    """What an environment said, from the JSON that ``Stage.call`` gave."""
    if answer is None or isinstance(answer, str):
        return answer
    rows = cast("Sequence[Sequence[str]]", answer)
    return tuple(Message(role=role, content=content) for role, content in rows)


def _write_said(value: object) -> Json:
    """A string and None as they are, messages as a list of pairs. RewardError for anything else."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (Message, Mapping)):
        return [_write_message(cast("object", value))]
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        messages = [_write_message(message) for message in cast("Sequence[object]", value)]
        if messages:
            return messages
    raise RewardError(
        f"it returned {_shown(cast('object', value))}. Return a string, a message "
        '({"role": ..., "content": ...}), a list of messages, or None.'
    )


def _write_message(message: object) -> list[str]:
    if isinstance(message, Message):
        role, content = cast("object", message.role), cast("object", message.content)
    elif isinstance(message, Mapping):
        fields = cast("Mapping[object, object]", message)
        role, content = fields.get("role"), fields.get("content")
    else:
        role = content = None
    if not isinstance(role, str) or not isinstance(content, str):
        raise RewardError(
            f'it returned the message {_shown(cast("object", message))}. A message is {{"role": ..., "content": ...}}.'
        )
    return [role, content]


def read_score(value: object) -> Json:
    """A finite number, a dict of them (None where one does not apply), or None. RewardError for anything else."""
    if isinstance(value, Mapping):
        scores: dict[str, Json] = {}
        for name, score in cast("Mapping[object, object]", value).items():
            if not isinstance(name, str):
                raise RewardError(f"its score() returned a dict with the key {name!r}. Keys are names.")
            scores[name] = _number(score)
        return scores
    return _number(value)


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = cast("object", value.item())
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if not math.isfinite(number):
        raise RewardError(
            f"its score() returned {_shown(value)}. Return a finite number, a dict of them by name, or None."
        )
    return number


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
