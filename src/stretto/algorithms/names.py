"""Names of the forms that a formula has: one that it does not know must not fall into some other form.

Settings of a recipe are checked where it is read. This is for calls from code that no type checker has looked at.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from stretto.errors import ConfigError, nearest

__all__ = ["check_names", "known_names_only"]

P = ParamSpec("P")
R = TypeVar("R")


def known_names_only(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises ConfigError for an argument that is none of the Literals its parameter says."""
    known = _named(inspect.signature(function))
    order = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        _check(function.__name__, known, {**dict(zip(order, args, strict=False)), **kwargs})
        return function(*args, **kwargs)

    return checked


def check_names(what: str, signature: inspect.Signature, given: Mapping[str, object]) -> None:
    """Raises ConfigError for a value in ``given`` that is none of the Literals its parameter of ``what`` says."""
    _check(what, _named(signature), given)


def _named(signature: inspect.Signature) -> Mapping[str, tuple[str, ...]]:
    """The names that each parameter of a Literal of names knows."""
    literals = {name: _names(parameter.annotation) for name, parameter in signature.parameters.items()}
    return {name: known for name, known in literals.items() if known}


def _names(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is not Literal:
        return ()
    known = get_args(annotation)
    return known if all(isinstance(name, str) for name in known) else ()


def _check(what: str, known: Mapping[str, tuple[str, ...]], given: Mapping[str, object]) -> None:
    for name, names in known.items():
        if name in given and given[name] not in names:
            raise ConfigError(f"{what}: {name}={given[name]!r} is not known.{nearest(str(given[name]), names)}")
