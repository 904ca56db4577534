"""A Recipe from what a user gives: a packaged name, a YAML file, ``module:function`` or a mapping, plus overrides."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.config.base import Section
from stretto.config.checking import build_recipe
from stretto.config.fields import as_mapping, given_tree
from stretto.config.overrides import apply, parse_overrides
from stretto.config.reading import SUFFIXES, Layer, find_recipe, read_layers
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError, nearest
from stretto.imports import import_named, told

__all__ = ["LoadedRecipe", "load_recipe", "recipe_from_mapping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRecipe:
    """A recipe, the word a run of it is named after, and where it came from (a file, or ``module:function``)."""

    recipe: Recipe
    hint: str
    origin: str


def load_recipe(source: str, overrides: Sequence[str] = (), *, packaged: Path) -> LoadedRecipe:
    """The recipe ``source`` with ``key=value`` overrides; ``packaged`` is the folder of the named ones.

    Raises ConfigError that names everything wrong, a line each.
    """
    parsed = parse_overrides(overrides)
    if ":" in source and Path(source).suffix not in SUFFIXES:
        layer, hint, origin = _from_function(source), source.rpartition(":")[2], source
    else:
        path = find_recipe(source, packaged, Path())
        layer, hint, origin = read_layers(path, packaged), path.stem, str(path)
    if "nodes" in layer.tree:
        raise ConfigError(
            f"{source} is a workflow (it has nodes), and a recipe belongs here. Draw it by `stretto graph {source}`, "
            f"or give it to a recipe: `stretto train quickstart workflow={source}`."
        )
    places = {k: place for k, place in layer.places.items() if not any(_covers(o.key, k) for o in parsed)}
    recipe = build_recipe(apply(layer.tree, parsed), places)
    return LoadedRecipe(recipe=recipe, hint=hint, origin=origin)


def recipe_from_mapping(mapping: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of nested Python mappings or section models, with ``key=value`` overrides. Raises ConfigError."""
    tree = {key: given_tree(value) if isinstance(value, Section) else value for key, value in mapping.items()}
    return build_recipe(apply(tree, parse_overrides(overrides)), {})


def _covers(key: str, other: str) -> bool:
    return other == key or other.startswith(f"{key}.")


def _from_function(source: str) -> Layer:
    """Calls ``module:function``, which returns a Recipe or a mapping."""
    module_name, _, name = source.partition(":")
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise ConfigError(f"the recipe {source!r}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(f"the recipe {source!r}: {module_name} has no function {name!r}.{nearest(name, known)}")
    needed = _needed(function)
    if needed:
        raise ConfigError(
            f"the recipe {source!r} cannot be called: it needs {', '.join(needed)}. A recipe is a function without "
            "parameters that returns a Recipe or a mapping; a workflow is a function under @workflow, which a recipe "
            "takes as workflow=module:function."
        )
    try:
        made = function()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise ConfigError(f"the recipe {source!r} failed ({told(error)}). Mend it there.") from error
    if isinstance(made, Recipe):
        return Layer(tree=given_tree(made))
    mapping = as_mapping(made)
    if mapping is None:
        raise ConfigError(f"the recipe {source!r} returned {type(made).__name__}. Return a Recipe or a mapping.")
    return Layer(tree=dict(mapping))


def _needed(function: Callable[..., Any]) -> list[str]:
    """The parameters that a call must give."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # something built in that does not say
        return []
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
