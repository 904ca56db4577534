"""Graphs and plans of recipes, without a device."""

from stretto.config.recipe import Recipe
from stretto.graph import Graph
from stretto.runtime.graphs import find_workflow, main_graph

__all__ = ["graph_of"]


def graph_of(what: Recipe | str) -> Graph:
    """The graph of a recipe's main phase, or of a workflow by name, file or ``module:function``."""
    if isinstance(what, Recipe):
        return main_graph(what)
    found = find_workflow(what)
    return found if isinstance(found, Graph) else found.graph()
