"""What the models say about themselves: every key of a recipe with its type, default, range and doc line.

The one place that looks inside pydantic's models. Error messages, the reference and ``--help`` are made from it. It
reads no file and validates nothing.
"""

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from stretto.config.base import Section, documented
from stretto.config.by_step import ByStep
from stretto.config.intervals import Interval

__all__ = [
    "FieldDoc",
    "SectionType",
    "allowed",
    "as_mapping",
    "choices",
    "field_at",
    "field_docs",
    "filled_by",
    "given_tree",
    "inner",
    "is_by_step",
    "is_text",
    "nullable",
    "section_by_name",
    "sections_of",
    "show",
    "takes_bool",
    "variant_of",
]

SectionType: TypeAlias = type[Section]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDoc:
    """One key of a recipe. ``variant`` names the ``type`` of the section that has it, or is empty."""

    key: str
    variant: str
    allowed: str
    default: str
    doc: str


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """``value`` if it is a mapping, else None. Keys of recipes are text wherever they come from."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def given_tree(section: Section) -> dict[str, Any]:
    """What was given of a section, as the mapping that makes it again: defaults that nobody wrote stay out."""
    tree: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if name in section.model_fields_set or name == "type":
            tree[name] = _given(value)
    return tree


def _given(value: object) -> object:
    if isinstance(value, Section):
        return given_tree(value)
    if isinstance(value, ByStep):
        return value.tree()
    below = as_mapping(value)
    return {name: _given(item) for name, item in below.items()} if below is not None else value


def sections_of(field: FieldInfo) -> tuple[SectionType, ...]:
    """The section models a field may hold: none for a plain value, several for a choice on ``type``."""
    return tuple(t for t in _members(field.annotation) if isinstance(t, type) and issubclass(t, Section))


def section_by_name(field: FieldInfo) -> SectionType | None:
    """The section model of every value, if the field is a mapping of free names to sections."""
    for member in _members(field.annotation):
        if get_origin(member) is dict and _is_section(get_args(member)[1]):
            return get_args(member)[1]
    return None


def _is_section(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, Section)


def field_at(names: Sequence[str], root: SectionType) -> FieldInfo | None:
    """The field of a dotted key, in whichever variant has it; free names are passed over."""
    models: tuple[SectionType, ...] = (root,)
    field: FieldInfo | None = None
    rest = list(names)
    while rest:
        name = rest.pop(0)
        found = [m.model_fields[name] for m in models if name in m.model_fields]
        field = found[0] if found else None
        by_name = section_by_name(field) if field is not None else None
        if by_name is not None and rest:
            rest.pop(0)
            models, field = (by_name,), None if not rest else field
        else:
            models = tuple(s for f in found for s in sections_of(f))
    return field


def variant_of(section: SectionType) -> str:
    """The value of ``type`` that chooses this section, or an empty string for one that is no choice."""
    field = section.model_fields.get("type")
    return str(field.default) if field is not None else ""


def nullable(field: FieldInfo) -> bool:
    """Whether null may be given."""
    return type(None) in _members(field.annotation)


def is_text(field: FieldInfo) -> bool:
    """Whether the field holds text, and nothing but text (or null)."""
    return {m for m in _members(field.annotation) if m is not type(None)} == {str}


def is_by_step(key: str, root: SectionType) -> bool:
    """Whether the field of a dotted key takes a mapping from steps to values; so does what is under its ``at``."""
    field = field_at(key.removesuffix(".at").split("."), root)
    return field is not None and ByStep in _members(field.annotation)


def takes_bool(field: FieldInfo) -> bool:
    """Whether true and false are values of the field."""
    return bool in _members(field.annotation)


def choices(field: FieldInfo) -> tuple[Any, ...]:
    """The values of a Literal field, or nothing."""
    return tuple(value for m in _members(field.annotation) if get_origin(m) is Literal for value in get_args(m))


def allowed(field: FieldInfo) -> str:
    """What may be given, in words: ``a whole number, 1 or more, or null``."""
    sections = sections_of(field)
    if len(sections) > 1:
        words = f"a section with type {_or([variant_of(s) for s in sections])}"
    elif sections:
        words = "a section"
    elif choices(field):
        values = [show(value) for value in choices(field)]
        others = [m for m in _members(field.annotation) if m is not type(None) and get_origin(m) is not Literal]
        words = _or([*values, *(_kind(m) for m in others)])
    else:
        members = _members(field.annotation)
        kinds = [_kind(m) for m in members if m not in (type(None), ByStep)]
        words = ", ".join([" or ".join(kinds), *_bounds(field), *(["or such values by step"] * (ByStep in members))])
    return f"{words}, or null" if nullable(field) else words


def show(value: object) -> str:
    """A value as it is written on the command line, shortened if it is long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    mapping = as_mapping(value)
    if mapping is not None:
        text = "{" + ", ".join(f"{k}: {show(v)}" for k, v in mapping.items()) + "}"
    elif isinstance(value, (list, tuple)):
        text = "[" + ", ".join(show(v) for v in cast("list[object]", value)) + "]"
    elif isinstance(value, str):
        text = repr(value) if not value or value != value.strip() or "\n" in value else value
    else:
        text = f"{value}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def field_docs(model: SectionType, prefix: str = "", filled: Section | None = None) -> Iterator[FieldDoc]:
    """Every key below ``model``, sections before their fields, the variants of a choice one after the other.

    ``filled`` is what the section is when a recipe leaves it out; its values are the defaults then.
    """
    variant = variant_of(model)
    own = inspect.get_annotations(model)  # what several variants share comes after what one has itself
    for name, field in sorted(documented(model).items(), key=lambda item: item[0] not in own):
        key, default = f"{prefix}{name}", _default(field)
        if filled is not None and name in filled.model_fields_set:
            default = show(getattr(filled, name))
        yield FieldDoc(key=key, variant=variant, allowed=allowed(field), default=default, doc=field.description or "")
        for section in sections_of(field):
            yield from field_docs(section, f"{key}.", filled_by(field, section))
        by_name = section_by_name(field)
        if by_name is not None:
            yield from field_docs(by_name, f"{key}.NAME.")


def filled_by(field: FieldInfo, section: SectionType) -> Section | None:
    """What ``field`` is when a recipe leaves it out, if that is a ``section``."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    return value if isinstance(value, section) else None


def _members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation, with unions and Annotated taken apart."""
    if annotation == Interval:
        return (annotation,)
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(m for part in get_args(annotation) for m in _members(part))
    return (annotation,)


_VALUES: Mapping[Any, str] = {float: "numbers", str: "texts"}


def inner(field: FieldInfo) -> str | None:
    """What a named value inside a mapping of names must be, or None if the field holds no such mapping."""
    values = [get_args(m)[1] for m in _members(field.annotation) if get_origin(m) is dict]
    if not values:
        return None
    return "a section" if _is_section(values[0]) else {float: "a number", str: "text"}.get(values[0], "a mapping")


def _kind(member: Any) -> str:
    if member == Interval:
        return "a number of steps from 1, or a text such as 10 minutes or 0.5 epochs"
    if get_origin(member) is tuple and get_args(member) == (str, ...):
        return "a list of texts"
    if get_origin(member) is tuple:
        return f"a list of {len(get_args(member))} numbers"
    if get_origin(member) is list:
        return "a list of texts"
    if get_origin(member) is dict:
        values = get_args(member)[1]
        return f"a mapping of names to {'sections' if _is_section(values) else _VALUES.get(values, 'values')}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return {**words, ByteSize: "a size such as 2GiB"}[member]


def _bounds(field: FieldInfo) -> list[str]:
    words: list[str] = []
    for bound in field.metadata:
        if isinstance(bound, Ge):
            words.append(f"{show(bound.ge)} or more")
        elif isinstance(bound, Gt):
            words.append(f"above {show(bound.gt)}")
        elif isinstance(bound, Le):
            words.append(f"at most {show(bound.le)}")
        elif isinstance(bound, Lt):
            words.append(f"below {'2**63' if bound.lt == 2**63 else show(bound.lt)}")
        elif getattr(bound, "pattern", None):
            words.append("of letters, digits, '.', '_' and '-', a letter or digit first")
    return words


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if not isinstance(value, Section):
        return show(value)
    given = {name: getattr(value, name) for name in type(value).model_fields if name in value.model_fields_set}
    return variant_of(type(value)) or (show(given) if given else "")


def _or(values: list[str]) -> str:
    return " or ".join([", ".join(values[:-1]), values[-1]]) if len(values) > 1 else values[0]
