"""Graphs and plans of recipes, without a device."""

from stretto.config.recipe import Recipe
from stretto.errors import ConfigError
from stretto.graph import Graph
from stretto.runtime.graphs import find_workflow, main_graph, warmup_graph

__all__ = ["graph_of"]


def graph_of(what: Recipe | str, phase: str = "main") -> Graph:
    """The graph of a phase of a recipe (``main`` or ``warmup``), or of a workflow by name, file or ``module:function``.

    Raises ConfigError for the warm-up of what has none.
    """
    if isinstance(what, Recipe):
        if phase == "main":
            return main_graph(what)
        if what.warmup is None:
            raise ConfigError("the recipe has no warm-up to draw: warmup is null. Leave --phase out.")
        return warmup_graph(what.warmup)
    if phase != "main":
        raise ConfigError(f"{what} is a workflow, which has no phases. Leave --phase out, or give a recipe.")
    found = find_workflow(what)
    return found if isinstance(found, Graph) else found.graph()
