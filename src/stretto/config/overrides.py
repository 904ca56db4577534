"""``key=value`` from the command line: parsing, laying them over a recipe, and which of them a resume may take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.config.checking import build_recipe
from stretto.config.fields import as_mapping, field_at, given_tree, is_by_step, is_text, nullable, sections_of, show
from stretto.config.merging import drop_unknown
from stretto.config.reading import parse_value
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError, ResumeError
from stretto.types import Json

__all__ = [
    "RESUME_SAFE_KEYS",
    "Change",
    "Override",
    "apply",
    "apply_overrides",
    "apply_resume_overrides",
    "parse_overrides",
]

RESUME_SAFE_KEYS: tuple[str, ...] = (
    "steps",
    "epochs",
    "evaluate",
    "save",
    "export",
    "publish",
    "offload",
    "cluster",
    "placement",
    "warmup.max_steps",
    "warmup.until",
    "warmup.evaluate",
    "reward.on_error",
    "reward.retries",
    "reward.max_dropped",
    "reward.timeout_s",
    "reward.workers",
    "environment.on_error",
    "environment.retries",
    "environment.max_dropped",
    "environment.timeout_s",
    "environment.workers",
    "sampling.deadline_s",
    "schedule.max_refills",
    "backend.max_skipped",
    "engine.prefix_tokens",
)
"""What a resume may change, whole sections included: how long it runs, what is looked at and kept, and what failures
do. Nothing here changes a step that both runs make without failure (a decaying learning rate follows ``steps``), but
for another number of ranks, whose sums are rounded in another order."""


_WHOLE = ("warmup.until", "evaluate.sets", "warmup.evaluate.sets")
"""Mappings of free names: a name may be gone, so a change of one is a change of the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One ``key=value``: the dotted key, its YAML value, and the right side as it was typed."""

    key: str
    value: Any
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A key whose value an override changed, as JSON values."""

    key: str
    old: Json
    new: Json


def parse_overrides(overrides: Sequence[str]) -> tuple[Override, ...]:
    """The overrides in order. Raises ConfigError for one without ``=``, given twice, or at odds with another."""
    parsed: list[Override] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key or key != key.strip():
            raise ConfigError(f"{text!r} is not an override. Write key=value without spaces, such as steps=100.")
        if not value:
            raise ConfigError(f"{text!r} sets {key} to nothing. Write {key}=null, or {key}='' for empty text.")
        for other in parsed:
            if other.key == key:
                raise ConfigError(f"{key} is given twice ({key}={other.text} and {text}). Keep one.")
            if key.startswith(f"{other.key}.") or other.key.startswith(f"{key}."):
                raise ConfigError(f"{other.key}={other.text} and {text} set the same section. Keep one of them.")
        parsed.append(Override(key=key, value=_value(key, value, text), text=value))
    return tuple(parsed)


def apply(tree: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """``tree`` with the overrides set; a changed ``type`` first drops what the new type does not know."""
    result = dict(tree)
    for override in sorted(overrides, key=lambda o: not o.key.endswith(".type")):
        *names, last = override.key.split(".")
        if last == "type" and len(names) == 1:
            _switch(result, names[0], override.value)
        place = result
        for depth, name in enumerate(names):
            if place.get(name) is not None and as_mapping(place[name]) is None:
                key = ".".join(names[: depth + 1])
                raise ConfigError(f"{override.key}={override.text}: {key} is one value, not a section of keys.")
            below = dict(as_mapping(place.get(name)) or {})
            place[name] = below
            place = below
        place[last] = override.value
    return result


def apply_overrides(recipe: Recipe, overrides: Sequence[str]) -> tuple[Recipe, tuple[Change, ...]]:
    """``recipe`` with any keys overridden, as for a fork, and what that changed."""
    parsed = parse_overrides(overrides)
    new = build_recipe(apply(given_tree(recipe), parsed), {})
    return new, _changes(recipe, new)


def apply_resume_overrides(recipe: Recipe, overrides: Sequence[str]) -> tuple[Recipe, tuple[Change, ...]]:
    """``recipe`` with safe keys overridden, and what that changed. Raises ResumeError for other keys."""
    new, changes = apply_overrides(recipe, overrides)
    unsafe = [change for change in changes if not _safe(change.key)]
    if unsafe:
        what = ", ".join(f"{c.key} ({show(c.old)} -> {show(c.new)})" for c in unsafe)
        raise ResumeError(
            f"a resume cannot change {what}: the run would no longer be one experiment. Start a new run from its "
            f"newest checkpoint with --fork NAME, or change only {', '.join(RESUME_SAFE_KEYS)}."
        )
    return new, changes


def _value(key: str, text: str, what: str) -> Any:
    """The value of an override's right side. What a key of text is given is taken as it is typed, unless quoted.

    So ``#``, ``{`` and ``: ``, which mean something else in YAML, may stand in a template or a regular expression.
    """
    field = field_at(key.split("."), Recipe)
    if field is None or not is_text(field) or text[0] in "'\"":
        return parse_value(text, what)
    return None if nullable(field) and text in ("null", "~") else text


def _safe(key: str) -> bool:
    return any(key == safe or key.startswith(f"{safe}.") for safe in RESUME_SAFE_KEYS)


def _switch(tree: dict[str, Any], name: str, new: object) -> None:
    field = Recipe.model_fields.get(name)
    below = as_mapping(tree.get(name))
    if field is not None and below is not None:
        tree[name] = drop_unknown(below, new, sections_of(field), field.default)


def _changes(old: Recipe, new: Recipe) -> tuple[Change, ...]:
    before, after = dict(_flat(old.model_dump(mode="json"))), dict(_flat(new.model_dump(mode="json")))
    keys = dict.fromkeys([*before, *after])
    return tuple(
        Change(key=key, old=before.get(key), new=after.get(key)) for key in keys if before.get(key) != after.get(key)
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Json]]:
    flat: list[tuple[str, Json]] = []
    for name, value in tree.items():
        below = as_mapping(value)
        if below is not None and f"{prefix}{name}" not in _WHOLE and not is_by_step(f"{prefix}{name}", Recipe):
            flat += _flat(below, f"{prefix}{name}.")
        else:
            flat.append((f"{prefix}{name}", value))
    return flat
