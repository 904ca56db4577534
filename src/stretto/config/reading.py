"""Reads YAML files of recipes: numbers as people write them, no doubled keys, ``extends`` followed and merged.

Owns the way from a file to one plain mapping and to where each of its keys was written. What the keys mean is
checked elsewhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml

from stretto.config.fields import as_mapping, is_by_step
from stretto.config.merging import merge
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError, nearest

__all__ = ["Layer", "Tree", "find_recipe", "has_key", "parse_value", "read_layers"]

Tree: TypeAlias = dict[str, Any]
"""A recipe as it was written: nested mappings of YAML values."""

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A mapping with ``FILE:LINE`` of each dotted key in it."""

    tree: Tree
    places: Mapping[str, str] = field(default_factory=dict[str, str])


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of version 1.2: ``3e-5`` is a number; ``on``, ``no`` and ``2024-01-01`` are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 PyYAML's own shape


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*)$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+0123456789."),
    ),
    ("merge", r"^(?:<<)$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)  # pyright: ignore[reportUnknownMemberType]


def parse_value(text: str, what: str) -> Any:
    """The YAML value of an override's right side; ``what`` names it in the error."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{what}: not a YAML value ({error.problem}). Quote text that has YAML's signs.") from error
    except (yaml.reader.ReaderError, ValueError, RecursionError) as error:
        raise ConfigError(f"{_cut(what)}: not a YAML value ({_reason(error)}).") from error


def find_recipe(source: str, packaged: Path, relative_to: Path) -> Path:
    """The file of a recipe: a packaged name, or a path to a YAML file (relative to ``relative_to``)."""
    names = sorted(path.stem for path in packaged.glob("*.yaml"))
    if source in names:
        return packaged / f"{source}.yaml"
    path = relative_to / source
    if path.is_file():
        return path
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"no recipe is called {source!r}.{nearest(source, names)} A recipe is a packaged name, a YAML file or "
            "module:function."
        )
    beside = [p.name for p in path.parent.glob("*") if p.suffix in SUFFIXES] if path.parent.is_dir() else []
    raise ConfigError(f"the recipe file {path} does not exist.{nearest(path.name, beside)}")


def read_layers(path: Path, packaged: Path, above: tuple[Path, ...] = ()) -> Layer:
    """The file ``path`` merged over everything it extends, depth first, later ones over earlier ones."""
    here = path.resolve()
    if here in above:
        chain = " -> ".join(p.name for p in (*above[above.index(here) :], here))
        raise ConfigError(f"{path}: extends itself ({chain}). Take one of these out of extends.")
    own = _read(path)
    tree: Tree = {}
    places: dict[str, str] = {}
    for source in _extends(own.tree.pop("extends", None), path):
        base = read_layers(find_recipe(source, packaged, path.parent), packaged, (*above, here))
        tree = merge(tree, base.tree)
        places.update(base.places)
    return Layer(tree=merge(tree, own.tree), places={**places, **own.places})


def _extends(value: Any, path: Path) -> Sequence[str]:
    names = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: extends={value!r} must be the name of a recipe, or a list of names.")
    return [str(name) for name in names]


def _read(path: Path) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the recipe file {path} cannot be read: {error}.") from error
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:  # it looks for signs that no text has as soon as it is made
        raise ConfigError(f"{path}: not text: {error.reason} at character {error.position}.") from error
    try:
        node = loader.get_single_node()
        if node is None:
            return Layer(tree={})
        places = dict(_places(node, path))
        tree = as_mapping(loader.construct_document(node))  # pyright: ignore[reportUnknownMemberType]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}.") from error
    except ConfigError:  # a ValueError too
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {_reason(error)}.") from error
    finally:
        loader.dispose()
    if tree is None:
        raise ConfigError(f"{path}: a recipe is a mapping of keys to values, and this is a single value or a list.")
    return Layer(tree=dict(tree), places=places)


def _reason(error: Exception) -> str:
    """What PyYAML does not tell in its own way: signs that no text has, numbers of thousands of digits, depth."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason} at character {error.position}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else f"{error}".partition(";")[0]


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _places(node: yaml.Node, path: Path, prefix: str = "", above: tuple[yaml.Node, ...] = ()) -> list[tuple[str, str]]:
    """``(dotted key, FILE:LINE)`` of every key; one that is written twice, or is no text, is refused."""
    found: list[tuple[str, str]] = []
    if any(node is other for other in above):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {prefix.rstrip('.')} contains itself. Write it out.")
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _places(item, path, prefix, (*above, node))
    if not isinstance(node, yaml.MappingNode):
        return found
    lines: dict[str, int] = {}
    steps = bool(prefix) and is_by_step(prefix.rstrip("."), Recipe)
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.tag != "tag:yaml.org,2002:str" and not (steps and key.tag == "tag:yaml.org,2002:int"):
            raise ConfigError(f"{path}:{line}: the key {key.value!r} is not text. Quote it.")
        if key.value in lines:
            raise ConfigError(
                f"{path}:{line}: {prefix}{key.value} is written twice (first on line {lines[key.value]}). Keep one."
            )
        lines[key.value] = line
        found.append((f"{prefix}{key.value}", f"{path}:{line}"))
        found += _places(value, path, f"{prefix}{key.value}.", (*above, node))
    return found


def has_key(path: Path, key: str) -> bool:
    """Whether a YAML file has ``key`` at its top: what tells a workflow's file from a recipe's."""
    return path.is_file() and key in _read(path).tree
