"""What there is to say of an algorithm: its formula and paper, its workflow, every setting it reads, presets.

All of it is read from the models of ``stretto.config.algorithms``; nothing about a single algorithm stands here.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stretto.config.algorithms import ALGORITHMS, ComposedConfig, GaeConfig, PolicyGradient, RatioFields
from stretto.config.algorithms.parts import RewardKlFields
from stretto.config.algorithms.presets import VERSIONS, convention_of, defects_of, presets_of
from stretto.config.base import Section, documented
from stretto.config.fields import FieldDoc, allowed, field_docs, sections_of, show, variant_of
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError, nearest
from stretto.graph import Graph
from stretto.runtime.graphs import main_graph

__all__ = [
    "AlgorithmDescription",
    "PartDescription",
    "PresetDescription",
    "SettingDescription",
    "algorithm_names",
    "describe_algorithm",
    "families",
    "parts",
    "summary_of",
]

REFERENCE = "grpo"
"""The algorithm that others are compared with."""

GROUPS, BASELINES, CRITICS = "relative to the group", "REINFORCE with a baseline", "with a critic"
NO_REWARD, BY_HAND = "without a reward", "put together by hand"
FAMILIES = (GROUPS, BASELINES, CRITICS, NO_REWARD, BY_HAND)
"""Kinds of algorithms, in the order of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDescription:
    """A field of an algorithm. ``default`` is its vetted value, or a preset's; ``reference`` GRPO's, where that has the
    field. Values are written as in ``key=value``."""

    key: str
    default: str
    allowed: str
    doc: str
    reference: str | None
    vetted: str

    @property
    def differs(self) -> bool:
        """Whether GRPO has another default, or no such setting."""
        return self.key != "preset" and self.reference != self.default


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDescription:
    """An estimator or a loss that ``composed`` takes."""

    key: str
    name: str
    summary: str
    settings: tuple[SettingDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetDescription:
    """What ``preset`` changes: values in place of the defaults, the defects that these reproduce, and what is computed
    otherwise there and is not reproduced."""

    name: str
    version: str
    values: Mapping[str, str]
    defects: tuple[str, ...]
    not_here: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmDescription:
    """All about an algorithm. ``below``: the settings in its sections, by dotted keys. ``missing``: GRPO's settings
    that it does not read."""

    name: str
    family: str
    summary: str
    doc: str
    formula: str
    paper: str
    graph: Graph
    settings: tuple[SettingDescription, ...]
    below: tuple[FieldDoc, ...]
    missing: tuple[str, ...]
    presets: tuple[PresetDescription, ...]
    parts: tuple[PartDescription, ...]

    def as_json(self) -> dict[str, object]:
        """The same as JSON values, the graph by its nodes."""
        named = ("name", "family", "summary", "doc", "formula", "paper")
        nodes = [{"id": s.id, "use": s.use, "on": s.model, "reads": list(s.inputs)} for s in self.graph.nodes]
        return {
            **{name: getattr(self, name) for name in named},
            "workflow": {"name": self.graph.name, "nodes": nodes},
            "settings": [{**asdict(s), "differs": s.differs} for s in self.settings],
            "below": [{"key": d.key, "default": d.default, "allowed": d.allowed, "doc": d.doc} for d in self.below],
            "missing": list(self.missing),
            "presets": [asdict(p) for p in self.presets],
            "parts": [asdict(p) for p in self.parts],
        }


def algorithm_names() -> tuple[str, ...]:
    """Every ``algorithm.type``."""
    return tuple(ALGORITHMS)


def families() -> Mapping[str, tuple[str, ...]]:
    """The names by kind."""
    return {family: names for family in FAMILIES if (names := tuple(n for n in ALGORITHMS if _family(n) == family))}


def summary_of(name: str) -> str:
    """An algorithm in one line."""
    return _first_line(ALGORITHMS[name])


def parts() -> tuple[PartDescription, ...]:
    """The estimators and losses that ``composed`` takes."""
    return tuple(_parts(ComposedConfig))


def describe_algorithm(name: str, preset: str | None = None) -> AlgorithmDescription:
    """All about an algorithm, by its ``algorithm.type``; with a ``preset``, its defaults are that framework's.

    ConfigError for an unknown name, and for a preset that says nothing of it.
    """
    if name not in ALGORITHMS:
        part = next((part for part in parts() if part.name == name), None)
        if part is not None:
            raise ConfigError(
                f"{name!r} is no algorithm but a part of one, algorithm.{part.key}.type={name} of "
                "algorithm.type=composed. `stretto algorithms show composed` lists the parts with their settings."
            )
        raise ConfigError(f"no algorithm is called {name!r}.{nearest(name, ALGORITHMS)}")
    model, reference = ALGORITHMS[name], ALGORITHMS[REFERENCE]
    given = {"type": name} if preset is None else {"type": name, "preset": preset}
    # With its workflow named, a recipe is not asked for what a run would need besides, such as a teacher.
    recipe = recipe_from_mapping({"steps": 1, "workflow": name, "algorithm": given})
    own = inspect.get_annotations(model)
    fields = sorted(model.model_fields, key=lambda field: field not in own)
    return AlgorithmDescription(
        name=name,
        family=_family(name),
        summary=summary_of(name),
        doc=_rest(model),
        formula=model.formula,
        paper=model.paper,
        graph=main_graph(recipe),
        settings=tuple(_setting(model, field, recipe.algorithm, reference) for field in fields if field != "type"),
        below=tuple(_below(model)),
        missing=tuple(field for field in reference.model_fields if field not in model.model_fields),
        presets=tuple(_preset(framework, name) for framework in presets_of(name)),
        parts=tuple(_parts(model)),
    )


def _family(name: str) -> str:
    model = ALGORITHMS[name]
    if issubclass(model, ComposedConfig):
        return BY_HAND
    if not issubclass(model, PolicyGradient):
        return NO_REWARD
    if model.estimator_model is GaeConfig:
        return CRITICS
    if issubclass(model, RewardKlFields) or not issubclass(model, RatioFields):
        return BASELINES
    return GROUPS


def _first_line(model: type[Section]) -> str:
    return _paragraphs(model)[0]


def _rest(model: type[Section]) -> str:
    """The docstring after its first paragraph."""
    return "\n\n".join(_paragraphs(model)[1:])


def _paragraphs(model: type[Section]) -> list[str]:
    return [" ".join(text.split()) for text in inspect.cleandoc(model.__doc__ or "").split("\n\n")]


def _setting(
    model: type[Section], name: str, filled: Section | None = None, reference: type[Section] | None = None
) -> SettingDescription:
    field = documented(model)[name]
    vetted = _shown(field.get_default(call_default_factory=True))
    other = None if reference is None else reference.model_fields.get(name)
    return SettingDescription(
        key=name,
        default=vetted if filled is None else _shown(getattr(filled, name)),
        allowed=allowed(field),
        doc=" ".join((field.description or "").replace("``", "").split()),
        reference=None if other is None else _shown(other.get_default(call_default_factory=True)),
        vetted=vetted,
    )


def _below(model: type[Section]) -> Iterator[FieldDoc]:
    """The keys inside the fields that are one section."""
    for key, field in model.model_fields.items():
        sections = sections_of(field)
        if len(sections) == 1:
            yield from (d for d in field_docs(sections[0], f"{key}.") if d.default)


def _shown(value: object) -> str:
    """A default in the way it is given: a section by its type and the fields that say something."""
    if not isinstance(value, Section):
        return show(value)
    changed = {n: getattr(value, n) for n in type(value).model_fields if n in value.model_fields_set or n == "type"}
    return show({n: _plain(v) for n, v in changed.items()})


def _plain(value: object) -> Any:
    return value.model_dump(exclude_unset=True) if isinstance(value, Section) else value


def _preset(framework: str, name: str) -> PresetDescription:
    made = ALGORITHMS[name].model_validate({"preset": framework})
    assert isinstance(made, PolicyGradient), name
    return PresetDescription(
        name=framework,
        version=VERSIONS[framework],  # pyright: ignore[reportArgumentType]
        values={key: _shown(value) for key, value in made.followed.items()},
        defects=defects_of(made.followed),
        not_here=convention_of(framework, name).not_here,
    )


def _parts(model: type[Section]) -> Iterator[PartDescription]:
    """The choices of every field that is a choice of sections."""
    for key, field in model.model_fields.items():
        sections = sections_of(field)
        for section in sections if len(sections) > 1 else ():
            settings = tuple(_setting(section, name) for name in section.model_fields if name != "type")
            yield PartDescription(key=key, name=variant_of(section), summary=_first_line(section), settings=settings)
