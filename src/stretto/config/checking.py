"""From a merged mapping to a Recipe, or to one message that names everything wrong with it, a line each.

Every line has the full dotted key, what was given, what may be given, and where it was written.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stretto.config.base import Section, documented
from stretto.config.fields import (
    SectionType,
    allowed,
    as_mapping,
    choices,
    field_at,
    filled_by,
    inner,
    is_by_step,
    nullable,
    section_by_name,
    sections_of,
    show,
    takes_bool,
    variant_of,
)
from stretto.config.foreign import called_here
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError, nearest

__all__ = ["build_recipe", "known_keys"]

Problems = list[tuple[str, str]]
"""(dotted key, sentence) of each thing that is wrong; the key is empty for what concerns several."""


def build_recipe(tree: Mapping[str, Any], places: Mapping[str, str]) -> Recipe:
    """The recipe of a mapping. Raises ConfigError with every problem; ``places`` says where keys were written."""
    _refuse_strange_keys(tree, "")
    problems: Problems = []
    checked = _check(tree, Recipe, "", problems)
    try:
        recipe = Recipe.model_validate(checked)
    except ValidationError as error:
        # Rules across keys say nothing useful while keys are unknown or misplaced.
        found = [d for d in error.errors() if not problems or d["type"] != "value_error"]
        problems += [_translate(detail) for detail in found]
        recipe = None
    if problems or recipe is None:
        lines = [f"{places[key]}: {text}" if key in places else text for key, text in problems]
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    return recipe


def _refuse_strange_keys(tree: object, prefix: str) -> None:
    """Raises ConfigError for a key that is no text, such as 3 in ``{3: ...}``, however deep."""
    below = as_mapping(tree)
    if prefix and is_by_step(prefix.rstrip("."), Recipe):
        return
    for name, value in below.items() if below is not None else ():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - Python and YAML hold any
            where = f" in {prefix.rstrip('.')}" if prefix else ""
            raise ConfigError(f"the key {name!r}{where} is not text. Quote it.")
        _refuse_strange_keys(value, f"{prefix}{name}.")
    for item in cast("Sequence[object]", tree) if isinstance(tree, list | tuple) else ():
        _refuse_strange_keys(item, prefix)


def known_keys(model: SectionType = Recipe, prefix: str = "") -> Iterator[str]:
    """Every dotted key there is, whichever variants are chosen."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for section in sections_of(field):
            yield from known_keys(section, f"{prefix}{name}.")
        by_name = section_by_name(field)
        if by_name is not None:
            yield from known_keys(by_name, f"{prefix}{name}.NAME.")


def _check(tree: Mapping[str, Any], model: SectionType, prefix: str, problems: Problems) -> dict[str, Any]:
    """``tree`` with defaults that pydantic would not see filled in, and without what is already a problem."""
    checked: dict[str, Any] = {}
    for name, value in tree.items():
        key, field, below = f"{prefix}{name}", model.model_fields.get(name), as_mapping(value)
        if field is None:
            problems += [(k, _unknown(k, model, prefix)) for k in _foreign(value, key, model) or [key]]
        elif isinstance(value, bool) and not takes_bool(field):
            problems.append((key, _misfit(key, value, documented(model)[name])))
        elif below is not None and sections_of(field):
            checked |= _check_section(below, field, key, problems)
        elif below is not None and (by_name := section_by_name(field)) is not None:
            sections = {own: as_mapping(item) for own, item in below.items()}
            good = {own: _check(s, by_name, f"{key}.{own}.", problems) for own, s in sections.items() if s is not None}
            checked[name] = {**below, **good}
        else:
            checked[name] = value
    return checked


def _check_section(value: Mapping[str, Any], field: FieldInfo, key: str, problems: Problems) -> dict[str, Any]:
    """``{last part of key: checked section}``; nothing if its type is unknown, which is then a problem."""
    sections, default = sections_of(field), field.get_default(call_default_factory=True)
    first = type(default) if isinstance(default, Section) else next(iter(sections))
    kind = value.get("type", variant_of(first))
    section = next((s for s in sections if variant_of(s) == kind), None) if len(sections) > 1 else first
    if section is None:
        kinds = [variant_of(s) for s in sections]
        problems.append((f"{key}.type", f"{key}.type={show(kind)} is not known.{nearest(str(kind), kinds)}"))
        return {}
    base = filled_by(field, section)
    filled = base.model_dump(exclude_unset=True) if base is not None else {}
    if len(sections) > 1:
        filled["type"] = kind
    return {key.rpartition(".")[2]: _check({**filled, **value}, section, f"{key}.", problems)}


def _foreign(value: object, key: str, model: SectionType) -> list[str]:
    """The keys of other libraries in an unknown section that is none of ours misspelt."""
    misspelt = "Did you mean" in nearest(key.rpartition(".")[2], model.model_fields)
    return [] if misspelt else [leaf for leaf in _leaves(value, key) if called_here(leaf)]


def _leaves(value: object, key: str) -> Iterator[str]:
    """The dotted keys of plain values in an unknown section, such as ``data.train_batch_size``."""
    below = as_mapping(value)
    if below is None:
        yield key
        return
    for name, inside in below.items():
        yield from _leaves(inside, f"{key}.{name}")


def _unknown(key: str, model: SectionType, prefix: str) -> str:
    """The sentence for a key that ``model`` does not have: other variants that do, or the nearest name."""
    kind, name = variant_of(model), key.removeprefix(prefix)
    if kind:
        siblings = [s for s in _siblings(prefix.rstrip(".")) if name in s.model_fields]
        if siblings:
            section, types = prefix.rstrip("."), ", ".join(variant_of(s) for s in siblings)
            below = [
                n for n, field in model.model_fields.items() if any(name in s.model_fields for s in sections_of(field))
            ]
            if below:
                return f"{key} is not read by {section}.type={kind}. Did you mean {prefix}{below[0]}.{name}?"
            only = f"{key} is not read by {section}.type={kind}, only by type {types}."
            meant = f" As another library's name, it is {called_here(key)} here." if called_here(key) else ""
            return f"{only}{meant} Take it out, or change the type."
    if called_here(key):
        return f"{key} is not a key of recipes: it is {called_here(key)} here."
    places = sorted({known for known in known_keys() if known.rpartition(".")[2] == key})
    if places:
        return f"{key} is not a key of recipes. Did you mean {' or '.join(places)}?"
    near = nearest(key, [f"{prefix}{n}" for n in model.model_fields])
    if "Did you mean" not in near:
        near = nearest(key, known_keys()) if "Did you mean" in nearest(key, known_keys()) else near
    return f"{key} is not a key of recipes{f' with {prefix}type={kind}' if kind else ''}.{near}"


def _siblings(section_key: str) -> Sequence[SectionType]:
    field = field_at(section_key.split("."), Recipe)
    return sections_of(field) if field is not None else ()


def _translate(detail: ErrorDetails) -> tuple[str, str]:
    """One of pydantic's errors as (dotted key, sentence)."""
    if detail["type"] == "value_error":
        return "", str(detail.get("ctx", {}).get("error"))
    key, field, inside = _locate(detail["loc"])
    if detail["type"] == "missing":
        return key, f"{key} is missing: it must be {allowed(field)}. Set {key}=VALUE.{_doc(field)}"
    if detail["type"] == "by_step":
        return key, f"{key}={show(detail['input'])} cannot be used: {detail['msg']}.{_doc(field)}"
    return key, _misfit(key, detail["input"], field, inside)


def _locate(loc: Sequence[int | str]) -> tuple[str, FieldInfo, bool]:
    """The dotted key of pydantic's location, which also holds the tags of unions, and the field that owns it.

    Last: whether it is about a named value inside the field's mapping.
    """
    model, names, parts = Recipe, [str(loc[0])], list(loc[1:])
    field = documented(model)[names[0]]
    while parts and (sections_of(field) or (section_by_name(field) and len(parts) > 1)):
        by_name = section_by_name(field)
        if by_name is not None:
            names += [str(parts.pop(0)), str(parts.pop(0))]
            field = documented(by_name)[names[-1]]
            continue
        sections = sections_of(field)
        kind = str(parts.pop(0)) if len(sections) > 1 else variant_of(next(iter(sections)))
        model = next(s for s in sections if variant_of(s) == kind)
        if parts:
            names.append(str(parts.pop(0)))
            field = documented(model)[names[-1]]
    # A field of several plain types has pydantic's name of one of them there, which is no key.
    inside = [part for part in parts if isinstance(part, str)] if inner(field) else []
    return ".".join([*names, *inside]), field, bool(inside)


def _misfit(key: str, value: object, field: FieldInfo, inside: bool = False) -> str:
    near = nearest(value, [str(c) for c in choices(field)]) if isinstance(value, str) and choices(field) else ""
    hint = near if "Did you mean" in near else ""
    null = f" {key}=null leaves it out." if value is False and nullable(field) else ""
    must = inner(field) if inside else allowed(field)
    return f"{key}={show(value)} cannot be used: it must be {must}.{hint}{null}{_meant(key, value, field)}{_doc(field)}"


def _meant(key: str, value: object, field: FieldInfo) -> str:
    """The key below a section that a plain value was probably meant for: its ``type``, or what it uses."""
    sections = sections_of(field)
    if not isinstance(value, str) or not sections:
        return ""
    if value in [variant_of(section) for section in sections]:
        return f" Write {key}.type={value}."
    below = next((name for name in ("use", "path") if all(name in s.model_fields for s in sections)), None)
    return f" Write {key}.{below}={value}." if below else ""


def _doc(field: FieldInfo) -> str:
    return f" ({field.description.replace('``', '')})" if field.description else ""
