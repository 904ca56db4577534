"""From a recipe to the graphs of its phases: which workflow, with which settings. Pure but for importing user code."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stretto.config.algorithms import ALGORITHMS
from stretto.config.base import Section
from stretto.config.recipe import Recipe
from stretto.config.sections import ScheduleConfig
from stretto.errors import ConfigError, GraphError, nearest
from stretto.graph import Graph, Workflow, check_models, load_graph, load_workflow, parents
from stretto.workflows.builtin import WORKFLOWS
from stretto.workflows.filling import proximal_of, settings_of
from stretto.workflows.nodes import NODES

__all__ = ["MODELS", "OWN_WEIGHTS", "VALUE_HEADS", "find_workflow", "main_graph", "warmup_graph"]

MODELS: Mapping[str, frozenset[str]] = {
    "policy": frozenset({"generate", "score", "train"}),
    "reference": frozenset({"score"}),
    "critic": frozenset({"score", "train"}),
    "reward": frozenset({"score", "train"}),
    "teacher": frozenset({"score"}),
}
"""The Models a recipe provides, with what each may do."""

OWN_WEIGHTS = frozenset({"policy", "teacher"})
"""The Models with weights of their own; the others start from the policy when a phase begins."""

VALUE_HEADS = frozenset({"critic", "reward"})
"""The Models with one output in place of the vocabulary."""

STEP_ROLES = frozenset({"score", "train", "memory"})
"""The roles that are served to per-step nodes; the others are to per-group nodes."""

UNJUDGED = frozenset({"rollout", "demonstrate", "prefer", "collect", "logprobs", "values", "distribution"})
"""Built-in nodes that give no rewards."""

NOT_PASSED = frozenset({"type"})
"""The field of ``algorithm`` that no workflow takes: the choice itself."""


def find_workflow(name: str) -> Workflow | Graph:
    """The workflow a recipe names: built in, a YAML or JSON file, or ``module:function``."""
    if name in WORKFLOWS:
        return WORKFLOWS[name]
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        return load_graph(Path(name), NODES)
    if ":" in name:
        return load_workflow(name)
    raise ConfigError(
        f"workflow={name!r} is no built-in workflow.{nearest(name, WORKFLOWS)} "
        "A workflow is a built-in name, a YAML file or module:function."
    )


def main_graph(recipe: Recipe, given: Workflow | None = None) -> Graph:
    """The graph of the main phase: the workflow that was ``given``, or the recipe's, or its algorithm's."""
    name, type = recipe.workflow, recipe.algorithm.type
    if given is None and name in WORKFLOWS and name != type:
        raise ConfigError(
            f"workflow={name} is what algorithm.type={name} implies, and algorithm.type is {type}. Set algorithm.type="
            f"{name}, and leave workflow out."
        )
    found = given or find_workflow(name or type)
    graph = _fill(found, recipe)
    _check_roles(graph)
    _check_judged(graph)
    return graph


def warmup_graph(recipe: Recipe) -> Graph:
    """The graph of the warm-up: of an algorithm at its vetted settings, or of a workflow with its own."""
    assert recipe.warmup is not None, "a recipe without warm-up has no graph of it"
    name = recipe.warmup.workflow
    if name in ALGORITHMS:
        return main_graph(_warmed_by(recipe, name))
    found = find_workflow(name)
    graph = found if isinstance(found, Graph) else found.graph()
    _check_roles(graph)
    return graph


def _warmed_by(recipe: Recipe, algorithm: str) -> Recipe:
    """What of the recipe an on-policy phase by ``algorithm`` looks at. ConfigError for what does not go with it."""
    kept = {name: getattr(recipe, name) for name in ("sampling", "environment", "teacher", "engine", "backend")}
    schedule = ScheduleConfig(deterministic=recipe.schedule.deterministic)
    try:
        vetted: Any = ALGORITHMS[algorithm](type=algorithm)
        return Recipe(steps=1, algorithm=vetted, schedule=schedule, **kept)
    except ValidationError as error:
        why = "; ".join(str(detail.get("ctx", {}).get("error", detail["msg"])) for detail in error.errors())
        raise ConfigError(f"warmup.workflow={algorithm}: {why}") from error


def _fill(found: Workflow | Graph, recipe: Recipe) -> Graph:
    """Trace with ``algorithm`` and ``sampling.n`` filled in by name; refuse what was set and would not be read."""
    asked = recipe.algorithm.model_fields_set - NOT_PASSED
    if isinstance(found, Graph):
        _refuse_unread(found.name, asked, (), "Write it under the node's `with:`.")
        _check_n(found, recipe)
        return found
    if recipe.workflow in (None, recipe.algorithm.type) and found is WORKFLOWS.get(recipe.algorithm.type):
        return replace(found.graph(**settings_of(recipe)), name=recipe.algorithm.type)
    _refuse_unread(found.name, asked, found.settings, "Remove it, or give the workflow that parameter.")
    # A workflow of one's own keeps its defaults where the recipe says nothing.
    filled = {k: v for k, v in _fields(recipe.algorithm).items() if k in found.settings and k in asked}
    if filled.get("proximal") == "auto":
        filled["proximal"] = proximal_of(recipe)
    if "n" in found.settings and "n" in recipe.sampling.model_fields_set:
        filled["n"] = recipe.sampling.n
    graph = found.graph(**filled)
    _check_n(graph, recipe)
    return graph


def _check_n(graph: Graph, recipe: Recipe) -> None:
    """``sampling.n``, where it is set, is the ``n`` of every rollout."""
    if "n" not in recipe.sampling.model_fields_set:
        return
    for spec in graph.nodes:
        n = spec.settings.get("n")
        if n is not None and any(r.kind == "generate" for r in spec.roles.values()) and n != recipe.sampling.n:
            raise ConfigError(
                f"sampling.n={recipe.sampling.n}, and node {spec.id!r} of workflow {graph.name!r} says n={n}. "
                "Set them equal, or leave sampling.n out."
            )


def _check_roles(graph: Graph) -> None:
    """Models that exist, doing what they may; and one node that samples a Model, since seeds know no node."""
    check_models(graph, MODELS)
    sampling: dict[str, str] = {}
    for spec in graph.nodes:
        for name, role in spec.roles.items():
            if (role.kind in STEP_ROLES) != (spec.world == "step"):
                here, there = ("per step", "per group") if spec.world == "step" else ("per group", "per step")
                raise GraphError(
                    f"workflow {graph.name!r}: node {spec.id!r} runs {here}, and its role {name!r} ({role.kind}) is "
                    f"served {there} only. Do that in a node of its own on the other side of collect."
                )
            if role.kind == "generate" and role.model is not None:
                first = sampling.setdefault(role.model, spec.id)
                if first != spec.id:
                    raise GraphError(
                        f"workflow {graph.name!r}: nodes {first!r} and {spec.id!r} both sample the Model {role.model!r}"
                        ", and a sample's seed depends on draw and place alone, so both would write the same. "
                        "Use one rollout with a larger n, and part its group in a node."
                    )


def _check_judged(graph: Graph) -> None:
    """Advantages are of rewards: what a built-in advantage node reads comes through a node that gives some.

    A node of the user's own may set rewards itself, so only what reads nothing but built-in ones is refused.
    """
    nodes = {spec.id: spec for spec in graph.nodes}
    for spec in graph.nodes:
        if spec.use not in ("advantages", "gae"):
            continue
        reads, waiting = set[str](), list(parents(spec))
        while waiting:
            id = waiting.pop()
            if id in nodes and id not in reads:
                reads.add(id)
                waiting += parents(nodes[id])
        if all(nodes[id].use in UNJUDGED for id in reads):
            raise GraphError(
                f"workflow {graph.name!r}: node {spec.id!r} ({spec.use}) makes advantages of rewards, and nothing it "
                "reads gives any. Judge the groups before they are collected: scored = score(group)."
            )


def _fields(section: Section) -> dict[str, object]:
    return {name: getattr(section, name) for name in type(section).model_fields}


def _refuse_unread(name: str, asked: Collection[str], read: Collection[str], do: str) -> None:
    for key in sorted(asked):
        if key not in read:
            raise ConfigError(f"algorithm.{key} is set, and workflow {name!r} does not read it. {do}")
