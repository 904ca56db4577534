"""The reference of every key of a recipe, made from the models: as Markdown for the docs, as lines for ``--help``.

python -m stretto.config.reference > docs/configuration.md
"""

import sys
from collections.abc import Iterable, Iterator

from pydantic.fields import FieldInfo

from stretto.config.base import Section
from stretto.config.fields import (
    FieldDoc,
    SectionType,
    field_docs,
    filled_by,
    section_by_name,
    sections_of,
    show,
    variant_of,
)
from stretto.config.overrides import RESUME_SAFE_KEYS
from stretto.config.recipe import Recipe

__all__ = ["help_fields", "reference_markdown"]

HEAD = """# Configuration

A recipe is one YAML file. Every key below may be written in it, or given as `key=value` on the command line or in
`overrides`. Unknown keys are refused with the nearest name.

- `extends: [other.yaml, quickstart]` merges other recipes below this one, mapping by mapping; later ones win. Files
  are looked for beside the file that extends them.
- Numbers may be written `3e-5`, `1_000` or `1e3`. `null` leaves something out. A key that is written twice is refused.
- A section with a `type` is a choice. Changing the type (`algorithm.type=ppo`) drops the keys of the recipe that the
  new type does not read; keys given on the command line are never dropped.
- `steps=100 algorithm.clip_high=0.28 warmup=null` on the command line sets single keys, or whole sections
  (`save={every: 50}`).
- Where a table says *by step*, [a value may change on the way](#values-by-step).

This page is made from the models: `python -m stretto.config.reference`.
"""

BY_STEP = """## Values by step

`backend.lr`, `critic.lr`, `sampling.temperature`, `schedule.max_staleness` and the `kl_coef` of an algorithm take a
number, or a mapping from steps to the values that hold from then on:

```yaml
# cooler.yaml
extends: quickstart
steps: 300
sampling: {temperature: {0: 1.0, 100: 0.8}}
backend: {lr: {at: {0: 1e-5, 200: 1e-6}, between: linear}}
```

- Steps are those of the main phase, from 0, and one of them is 0. After the last its value stays. A warm-up samples at
  the temperature of step 0.
- `between: hold` (the same as without) keeps a value until the next; `linear` draws a straight line between two, and is
  not for whole numbers. The bounds of a key hold for every value.
- On the command line it is quoted: `'sampling.temperature={0: 1.0, 100: 0.8}'`. In Python the keys are numbers. A value
  replaces another whole: those of two recipes are not mixed.
- A learning rate by step is the peak of its step: `lr_warmup` and `lr_decay` scale it as they scale a number.
- A temperature is that of the step a group was first admitted for, so it depends on no timing. Every row keeps its own,
  at which the trainer computes its log-probs.
- `max_staleness` is that of the step which trains: each of its tokens lags no more. Rules that name a number look at
  the largest.
- A `kl_coef` by step does not go with `kl_target`, which steers it. The reference is there in every step if any has a
  weight above 0.

The [metrics](metrics.md) of every step hold the value in force, as `by_step/KEY`; `stretto check` prints each schedule.
"""


def reference_markdown() -> str:
    """The whole reference, one table per section and variant."""
    parts = [HEAD, _section("The recipe", "", Recipe, field_docs(Recipe))]
    parts += list(_sections(Recipe, ""))
    parts.append(BY_STEP)
    safe = ", ".join(f"`{key}`" for key in RESUME_SAFE_KEYS)
    parts.append(
        "## What a resume may change\n\n`stretto resume RUN key=value` takes these keys and those below them, and "
        f"records the change: {safe}. Any other key makes another experiment: add `--fork NAME`.\n"
    )
    return "\n".join(dict.fromkeys(parts))  # a section that several types have alike is there once


def help_fields(prefix: str = "") -> list[tuple[str, str]]:
    """(key, its doc line, what may be given and the default) of every key that starts with ``prefix``, once.

    A section that stands elsewhere too is one line that says where; a key that several types read alike is one line
    with their names, and the choice of a type stands at its section. Without a prefix, of the algorithms only the
    default one has its keys here: there are too many.
    """
    variants: dict[tuple[str, str], list[str]] = {}
    for d in _once(Recipe, ""):
        if not prefix and d.key.startswith("algorithm.") and not _of_default_algorithm(d):
            variants.setdefault(("algorithm.*", "Of another algorithm: `stretto algorithms show NAME`."), [""])
        elif d.key.startswith(prefix) and not (d.variant and d.key.endswith(".type")):
            what = f" [{d.allowed}{_default(d)}]" if d.allowed else ""
            variants.setdefault((d.key, f"{d.doc.replace('``', '')}{what}"), []).append(d.variant)
    return [(_named(key, names), text) for (key, text), names in variants.items()]


def _of_default_algorithm(doc: FieldDoc) -> bool:
    """Whether the default algorithm has this key of ``algorithm``, or the section it is in."""
    _, name, *below = doc.key.split(".")
    default = Recipe.model_fields["algorithm"].default
    assert isinstance(default, Section)
    return name in type(default).model_fields if below else doc.variant in ("", variant_of(type(default)))


def _once(model: SectionType, prefix: str, filled: Section | None = None) -> Iterator[FieldDoc]:
    """The keys below ``model``, without those of sections that are described under a shorter key."""
    for doc in field_docs(model, prefix, filled):
        if "." in doc.key.removeprefix(prefix):
            continue  # of a section, which has its turn below
        field = model.model_fields[doc.key.removeprefix(prefix)]
        sections, by_name = sections_of(field), section_by_name(field)
        places = [(sections, doc.key)] if sections else [((by_name,), f"{doc.key}.NAME")] if by_name else []
        yield doc
        for kinds, key in places:
            if _HOMES[kinds] != key:
                yield _elsewhere(field, kinds, key)
                continue
            for kind in kinds:
                yield from _once(kind, f"{key}.", filled_by(field, kind))


def _elsewhere(field: FieldInfo, kinds: tuple[SectionType, ...], key: str) -> FieldDoc:
    """The line that stands for the keys of a section that has been described under another key."""
    own = [(kind, filled) for kind in kinds if (filled := filled_by(field, kind)) is not None]
    values = [f"{n}={show(getattr(f, n))}" for k, f in own for n in k.model_fields if n in f.model_fields_set]
    differ = f"; where left out, {', '.join(values)}" if values else ""
    doc = f"The keys of {_HOMES[kinds]}.*, with values of its own{differ}."
    return FieldDoc(key=f"{key}.*", variant="", allowed="", default="", doc=doc)


def _default(doc: FieldDoc) -> str:
    return f"; {doc.default}" if doc.default == "required" else f"; default {doc.default}" if doc.default else ""


def _named(key: str, variants: list[str]) -> str:
    named = ", ".join(filter(None, variants))
    return f"{key} ({named})" if named else key


def _sections(model: SectionType, prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        sections = sections_of(field)
        home = _HOMES.get(sections, f"{prefix}{name}")
        own_defaults = any(filled_by(field, section) for section in sections)
        if home.count(".") < prefix.count(".") and not own_defaults:  # described in its own place
            yield _same(f"{prefix}{name}", home, sections)
            continue
        for section in sections:
            docs = field_docs(section, f"{prefix}{name}.", filled_by(field, section))
            yield _section(_title(f"{prefix}{name}", section), f"{prefix}{name}.", section, docs)
            yield from _sections(section, f"{prefix}{name}.")
        by_name = section_by_name(field)
        if by_name is not None:
            inner = f"{prefix}{name}.NAME"
            if _HOMES[by_name,].count(".") < inner.count("."):
                yield _same(inner, _HOMES[by_name,], (by_name,))
                continue
            yield _section(f"`{inner}`", f"{inner}.", by_name, field_docs(by_name, f"{inner}."))
            yield from _sections(by_name, f"{inner}.")


def _homes(model: SectionType, prefix: str = "") -> dict[tuple[SectionType, ...], str]:
    """The shortest key of every section, or choice of sections: the place where the page describes it."""
    homes: dict[tuple[SectionType, ...], str] = {}
    for name, field in model.model_fields.items():
        sections, by_name = sections_of(field), section_by_name(field)
        found = {sections: f"{prefix}{name}"} if sections else {}
        for section in sections:
            found |= _homes(section, f"{prefix}{name}.")
        if by_name is not None:
            found |= {(by_name,): f"{prefix}{name}.NAME", **_homes(by_name, f"{prefix}{name}.NAME.")}
        for key, home in found.items():
            if key not in homes or home.count(".") < homes[key].count("."):
                homes[key] = home
    return homes


_HOMES = _homes(Recipe)


def _same(key: str, home: str, sections: tuple[SectionType, ...]) -> str:
    """Where the keys of a section stand that has been described under another key."""
    anchor = "".join(c for c in _title(home, sections[0]).lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return f"## `{key}`\n\nThe keys of [`{home}`](#{anchor}), with values of its own.\n"


def _title(key: str, section: SectionType) -> str:
    return f"`{key}`, type {variant_of(section)}" if variant_of(section) else f"`{key}`"


def _section(title: str, prefix: str, model: SectionType, docs: Iterable[FieldDoc]) -> str:
    docs = [d for d in docs if "." not in d.key.removeprefix(prefix)]
    doc = " ".join((model.__doc__ or "").split())
    return f"## {title}\n\n{doc}\n\n" + "\n".join(_table(docs)) + "\n"


def _table(docs: Iterable[FieldDoc]) -> Iterator[str]:
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    for d in docs:
        default = f"`{d.default}`" if d.default not in ("", "required") else d.default
        yield f"| `{d.key}` | {_cell(d.allowed)} | {_cell(default)} | {_cell(d.doc.replace('``', '`'))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference_markdown())
