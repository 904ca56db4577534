"""Checks the settings of nodes and workflows, and turns them into JSON values and back.

Checks are strict: ``"8"`` is no int and ``True`` is no number; an int is a float. Numbers must be finite.
"""

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, cast, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from stretto.errors import GraphError, nearest
from stretto.graph.annotations import type_name

__all__ = ["brief", "checked", "from_json", "to_json"]

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@lru_cache(maxsize=512)
def _adapter(annotation: object) -> TypeAdapter[Any]:
    # A tuple of one, because the settings of an adapter reach plain dataclasses only from outside them.
    # The type is only known at run time.
    return TypeAdapter(cast(Any, types.GenericAlias(tuple, (annotation,))), config=_STRICT)


def checked(value: object, annotation: object, what: str) -> object:
    """``value`` as a setting of this type, given in Python. ``what`` begins the error's sentence."""
    try:
        return _adapter(annotation).validate_python((value,))[0]
    except ValidationError as error:
        raise _refusal(error, value, annotation, what) from None


def from_json(value: object, annotation: object, what: str) -> object:
    """The setting that ``to_json`` wrote, or a person by hand."""
    try:
        text = json.dumps([value], allow_nan=True)
    except (TypeError, ValueError):
        raise GraphError(f"{what} is {value!r}, which is no JSON value. Give a {type_name(annotation)}.") from None
    try:
        return _adapter(annotation).validate_json(text)[0]
    except ValidationError as error:
        raise _refusal(error, value, annotation, what) from None


def to_json(value: object, annotation: object) -> object:
    """A checked setting as JSON values, fields at their defaults left out but for ``type``, by which a choice of
    sections is told; ``from_json`` gives it back.

    GraphError for what lives in this process only, such as a function.
    """
    try:
        adapter = _adapter(annotation)
        short = adapter.dump_python((value,), mode="json", exclude_defaults=True)[0]
        return _with_types(short, adapter.dump_python((value,), mode="json")[0])
    except PydanticSerializationError as error:
        raise GraphError(
            f"the setting {value!r} cannot be written down ({error}). Name what it holds as module:function."
        ) from None


def _with_types(short: object, full: object) -> object:
    """``short`` with the ``type`` that ``full`` has at each place."""
    if isinstance(short, list) and isinstance(full, list):
        pairs = zip(cast(list[object], short), cast(list[object], full), strict=True)
        return [_with_types(a, b) for a, b in pairs]
    if not isinstance(short, dict) or not isinstance(full, dict):
        return cast(object, short)
    given, whole = cast(dict[str, object], short), cast(dict[str, object], full)
    kept = {name: _with_types(value, whole[name]) for name, value in given.items()}
    return {"type": whole["type"], **kept} if "type" in whole else kept


def brief(value: object) -> str:
    """A setting in short, for drawings: of a section its ``type`` and the fields that are not at their defaults.

    ``group(scale=none)``, ``(coef=0.05)``; an empty text for null, and for a section without type that says nothing.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return "{" + ", ".join(f"{name}: {brief(below) or 'null'}" for name, below in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(brief(item) or "null" for item in cast("list[object]", value)) + "]"
    if isinstance(value, BaseModel) and type(value).__str__ is not BaseModel.__str__:
        return str(value)  # one that says itself how it is written, such as values by step
    if not isinstance(value, BaseModel) and (isinstance(value, type) or not is_dataclass(value)):
        return str(value)
    kind = getattr(value, "type", "")
    changed = ", ".join(f"{name}={brief(below) or 'null'}" for name, below in _changed(value) if name != "type")
    return f"{kind}({changed})" if changed else str(kind)


def _changed(section: Any) -> Iterator[tuple[str, object]]:
    """The fields of a section (of pydantic, or a dataclass) that are not at their defaults."""
    if isinstance(section, BaseModel):
        model = type(section)
        defaults = {name: f.get_default(call_default_factory=True) for name, f in model.model_fields.items()}
    else:
        defaults = {f.name: f.default for f in fields(section)}
    for name, default in defaults.items():
        value = getattr(section, name)
        if value != default:
            yield name, value


def _kinds(annotation: object) -> Mapping[str, type[BaseModel]]:
    """Of a choice of sections that ``type`` tells apart: each one's class by its type."""
    models = [m for m in get_args(annotation) if isinstance(m, type) and issubclass(m, BaseModel)]
    return {str(m.model_fields["type"].default): m for m in models if "type" in m.model_fields}


def _refusal(error: ValidationError, value: object, annotation: object, what: str) -> GraphError:
    kinds = _kinds(annotation)
    if kinds and isinstance(value, str):
        written = f" Write {{type: {value}}}." if value in kinds else nearest(value, kinds)
        return GraphError(f"{what} must be a section with its type, got {value!r}.{written}")
    if kinds and isinstance(value, Mapping) and "type" in value:
        given = cast("Mapping[str, object]", value)
        kind = str(given["type"])
        if kind not in kinds:
            return GraphError(f"{what} is {given!r}, whose type is not known.{nearest(kind, kinds)}")
        try:
            kinds[kind].model_validate(given)
        except ValidationError as narrower:
            return _told(narrower, given, kinds[kind], what, 0)
    return _told(error, cast("object", value), annotation, what, 1)


def _told(error: ValidationError, value: object, annotation: object, what: str, outer: int) -> GraphError:
    """The first of the errors; ``outer``: how many parts of its place are not in the setting itself."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return GraphError(f"{what} cannot be {value!r}: {first.get('ctx', {}).get('error', first['msg'])}")
    inside = ".".join(str(part) for part in first["loc"][outer:])
    place = f" (at {inside})" if inside and type_name(annotation) != inside else ""
    return GraphError(
        f"{what} must be {type_name(annotation)}, got {value!r} ({type(value).__name__}): "
        f"{first['msg'].lower()}{place}. Give a value of that type."
    )
