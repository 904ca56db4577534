"""Graphs and plans of recipes, without a device."""

from stretto.config.algorithms import ALGORITHMS
from stretto.config.load import recipe_from_mapping
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError
from stretto.graph import Graph
from stretto.runtime.graphs import find_workflow, main_graph, warmup_graph

__all__ = ["graph_of"]


def graph_of(what: Recipe | str, phase: str = "main") -> Graph:
    """The graph of a phase of a recipe (``main`` or ``warmup``), of an algorithm at its vetted settings, or of a
    workflow by its file or ``module:function``.

    Raises ConfigError for the warm-up of what has none.
    """
    if isinstance(what, Recipe):
        if phase == "main":
            return main_graph(what)
        if what.warmup is None:
            raise ConfigError("the recipe has no warm-up to draw: warmup is null. Leave --phase out.")
        return warmup_graph(what)
    if phase != "main":
        raise ConfigError(f"{what} is a workflow, which has no phases. Leave --phase out, or give a recipe.")
    if what in ALGORITHMS:
        return main_graph(recipe_from_mapping({"steps": 1, "workflow": what, "algorithm": {"type": what}}))
    found = find_workflow(what)
    return found if isinstance(found, Graph) else found.graph()
