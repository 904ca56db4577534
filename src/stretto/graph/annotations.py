"""What annotations of nodes mean: which are settings, whether an output fits an input, how a type is written.

Owns no node and no graph; only questions about types.
"""

import types
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, cast, get_args, get_origin, is_typeddict

from pydantic import BaseModel

from stretto.roles import ROLES, Sampling
from stretto.types import Batch, Group, LossRef

__all__ = ["across_type", "classes_of", "fits", "has_role", "is_setting", "members", "narrow", "role_of", "type_name"]

_SCALARS = (bool, int, float, str, type(None))
_SETTING_CLASSES = (LossRef, Sampling)
_CONTAINERS = (tuple, list, frozenset, dict, Mapping, Sequence)


def plain(annotation: object) -> object:
    """The annotation with aliases, ``Annotated`` and type variables replaced by what they stand for."""
    if annotation is None:
        return type(None)
    if get_origin(annotation) is Annotated:
        return plain(get_args(annotation)[0])
    if type(annotation).__name__ == "TypeAliasType":
        return plain(getattr(annotation, "__value__"))  # noqa: B009 - only there from Python 3.12 on
    if isinstance(annotation, TypeVar):
        return plain(annotation.__bound__) if annotation.__bound__ is not None else object
    return annotation


def members(annotation: object) -> list[object]:
    """The members of a union; of any other type, the type alone."""
    annotation = plain(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return [m for part in get_args(annotation) for m in members(part)]
    return [annotation]


def is_setting(annotation: object) -> bool:
    """Whether a parameter of this type is a setting.

    Settings are bool, int, float, str, None, Literal, LossRef, Sampling and pydantic models (every config section),
    and unions, tuples, lists and mappings of these. Every other type is an input.
    """
    parts = members(annotation)
    if len(parts) > 1:
        return all(is_setting(part) for part in parts)
    kind, origin, args = parts[0], get_origin(parts[0]), get_args(parts[0])
    if origin is Literal:
        return True
    if origin is not None:
        return origin in _CONTAINERS and all(arg is Ellipsis or is_setting(arg) for arg in args)
    return isinstance(kind, type) and (kind in _SCALARS or kind in _SETTING_CLASSES or issubclass(kind, BaseModel))


def role_of(annotation: object) -> str | None:
    """The name of the role that this type asks for, if it is one."""
    return next((name for name, role in ROLES.items() if annotation is role), None)


def has_role(annotation: object) -> bool:
    """Whether a role is a part of the union."""
    return any(role_of(part) is not None for part in members(annotation))


def across_type(annotation: object) -> bool:
    """Whether a parameter of this type takes the groups of a whole step: ``tuple[Group, ...]``, alone or in a union."""
    return any(get_args(part) == (Group, Ellipsis) for part in members(annotation) if get_origin(part) is tuple)


def narrow(annotation: object, world: str | None) -> object:
    """An output type as it is in its world: of ``Group | Batch`` the Group per group, the Batch per step."""
    parts = members(annotation)
    other = {"group": Batch, "step": Group}.get(world or "")
    kept = [part for part in parts if part is not other]
    if other is None or not kept or len(kept) == len(parts):
        return annotation
    return Union[tuple(kept)]  # noqa: UP007 - built at run time


def classes_of(annotation: object) -> tuple[type, ...]:
    """The classes that hold every value of this type, one per member of a union; ``object`` where no class can tell."""
    return tuple(_class_of(part) for part in members(annotation))


def _class_of(kind: object) -> type:
    if get_origin(kind) is Literal or isinstance(kind, NewType):
        return object
    found = get_origin(kind) or kind
    if not isinstance(found, type) or is_typeddict(found) or getattr(found, "_is_protocol", False):
        return object
    return {float: Real, int: Integral}.get(found, found)  # numpy's numbers too


def fits(source: object, target: object) -> bool:
    """Whether every value of type ``source`` may go where ``target`` is asked for.

    Unions, Optional, Literal, subclasses, int for float, and covariant arguments of generics. ``Any`` and ``object``
    take everything, and ``Any`` goes everywhere; a Protocol that cannot be checked on classes takes everything.
    """
    source, target = plain(source), plain(target)
    if target is Any or target is object or source is Any or source == target:
        return True
    if len(members(source)) > 1:
        return all(fits(part, target) for part in members(source))
    if len(members(target)) > 1:
        return any(fits(source, part) for part in members(target))
    if isinstance(source, NewType):
        return fits(cast(object, source.__supertype__), target)
    if get_origin(source) is Literal:
        if get_origin(target) is Literal:
            return set(get_args(source)) <= set(get_args(target))
        return all(fits(cast(object, type(value)), target) for value in get_args(source))
    return _class_fits(source, target)


def _class_fits(source: object, target: object) -> bool:
    source_class = get_origin(source) or source
    target_class = get_origin(target) or target
    if not isinstance(source_class, type) or not isinstance(target_class, type):
        return False
    if target_class is float and source_class is int:
        return True
    try:
        if not issubclass(source_class, target_class):
            return False
    except TypeError:  # a Protocol with attributes, or one that isn't runtime-checkable
        return True
    return _args_fit(get_args(source), get_args(target), source_class is tuple and target_class is tuple)


def _args_fit(source: tuple[object, ...], target: tuple[object, ...], tuples: bool) -> bool:
    if not source or not target:
        return True
    if tuples and target[-1] is Ellipsis:
        return all(fits(arg, target[0]) for arg in source if arg is not Ellipsis)
    if tuples and (source[-1] is Ellipsis or len(source) != len(target)):
        return False
    return len(source) != len(target) or all(fits(s, t) for s, t in zip(source, target, strict=True))


def type_name(annotation: object) -> str:
    """The type as a person writes it, without modules: ``Column | None``, ``tuple[Group, ...]``."""
    parts = members(annotation)
    if len(parts) > 1:
        return " | ".join(type_name(part) for part in parts)
    kind = parts[0]
    if kind is Ellipsis:
        return "..."
    if kind is type(None):
        return "None"
    origin = get_origin(kind)
    if origin is Literal:
        return f"Literal[{', '.join(repr(value) for value in get_args(kind))}]"
    if origin is not None:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(type_name(arg) for arg in get_args(kind))}]"
    return str(getattr(kind, "__name__", None) or kind)
