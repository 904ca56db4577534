"""Checks the settings (``with:``) of a reward: a built-in one's by name and type, another's by name."""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache, partial
from types import GenericAlias
from typing import Any, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stretto.environments.rewards.contract import Reward, reward_name
from stretto.environments.rewards.forms import passed_names
from stretto.errors import ConfigError, nearest

__all__ = ["with_settings"]

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@lru_cache(maxsize=256)
def _adapter(annotation: object) -> TypeAdapter[Any]:
    # The type is only known at run time.
    return TypeAdapter(cast(Any, GenericAlias(tuple, (annotation,))), config=_STRICT)


def with_settings(found: Reward, settings: Mapping[str, object], key: str) -> Reward:
    """``found`` with ``settings``: a class is made with them, a function takes them by name.

    ``key`` is where they are written (``reward``, ``reward.parts.right``), for messages. Raises ConfigError.
    """
    if isinstance(found, type):
        if found.__module__.startswith("stretto.environments.rewards."):
            return found(**_checked(found, settings, key))
        _check_names(found, settings, key)
        return _made(found, settings, key)
    if settings:
        _check_names(found, settings, key)
        return partial(found, **settings)
    return found


def _made(found: type, settings: Mapping[str, object], key: str) -> Reward:
    """The object that judges. Making it runs the user's code, which may raise anything."""
    try:
        made = found(**settings)
    except Exception as error:
        raise ConfigError(
            f"{key}: {found.__name__} cannot be made with {dict(settings)} ({type(error).__name__}: {error})."
        ) from error
    if not callable(made):
        raise ConfigError(f"{key}: {found.__name__} is a class whose objects cannot be called. Give it a __call__.")
    return made


def _checked(found: type, settings: Mapping[str, object], key: str) -> dict[str, object]:
    """Settings of a built-in reward, each of its type."""
    hints, known = get_type_hints(found), {field.name: field for field in fields(cast(Any, found)) if field.init}
    for name in settings:
        if name not in known:
            raise ConfigError(f"{key}.with.{name} is no setting of this reward.{nearest(name, known)}")
    for name, field in known.items():
        if name not in settings and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{key}.with.{name} is missing, and this reward needs it. Set {key}.with.{name}=VALUE.")
    return {name: _value(value, hints[name], f"{key}.with.{name}") for name, value in settings.items()}


def _value(value: object, annotation: object, what: str) -> object:
    if isinstance(value, list):
        value = tuple(cast("list[object]", value))
    try:
        return _adapter(annotation).validate_python((value,))[0]
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        raise ConfigError(f"{what}={value!r} cannot be used: {message[:1].lower()}{message[1:]}.") from None


def _check_names(found: Reward, settings: Mapping[str, object], key: str) -> None:
    """Settings of a reward of one's own are parameters of it."""
    parameters = inspect.signature(found).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY]
    free = [name for name in known if name not in passed_names(found)]
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"{key}.with.{name} is set, and {reward_name(found)} has no parameter {name}."
                f"{nearest(name, free) or ' It takes no settings: remove it.'}"
            )
