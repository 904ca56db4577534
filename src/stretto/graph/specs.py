"""The graph as a value: nodes with their edges, roles and settings, and what can be asked about them.

A Graph is made by tracing a workflow or by loading its written form, and both check it; nothing here does. Two graphs
are equal if they say the same; the functions behind their nodes are kept beside and are no part of that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, Literal, TypeAlias

from stretto.graph.nodes import Node

__all__ = [
    "PROMPT",
    "Graph",
    "NodeSpec",
    "Role",
    "World",
    "boundary_inputs",
    "models_of",
    "parents",
    "python_only",
]

World: TypeAlias = Literal["group", "step"]
"""How often a node runs: once per group (draw), or once per step."""

PROMPT = "prompt"
"""The reserved id of what a graph starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a node asks the runtime for: a kind of ``stretto.roles.ROLES``, and the Model if that kind has one."""

    kind: str
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node of a graph.

    ``use`` names the function: a built-in name, ``module:function``, or ``python:name`` if it cannot be imported.
    ``inputs`` gives each fed parameter the id it reads, ``*parameter`` a tuple of ids. ``settings`` are complete.
    """

    id: str
    use: str
    inputs: Mapping[str, str | tuple[str, ...]]
    roles: Mapping[str, Role]
    settings: Mapping[str, object]
    output: str
    world: World

    @property
    def model(self) -> str | None:
        """The Model its roles are on, if it has such roles."""
        return next((role.model for role in self.roles.values() if role.model is not None), None)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A checked workflow. ``nodes`` are in definition order; ``output`` is the id whose value reports the step.

    ``settings`` are those of the workflow it was traced with (empty for a loaded graph; the nodes hold their own).
    """

    name: str
    nodes: tuple[NodeSpec, ...]
    output: str
    settings: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)
    functions: Mapping[str, Node[Any]] = field(default_factory=dict[str, Node[Any]], compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.name, self.output, tuple(spec.id for spec in self.nodes)))

    @cached_property
    def by_id(self) -> Mapping[str, NodeSpec]:
        """The nodes by id."""
        return {spec.id: spec for spec in self.nodes}

    @cached_property
    def order(self) -> tuple[NodeSpec, ...]:
        """All nodes, each after what it reads; ties in definition order. The same for the same graph, everywhere."""
        return tuple(self.by_id[id] for id in topological({spec.id: parents(spec) for spec in self.nodes}))

    @cached_property
    def group_nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes that run once per group, in order."""
        return tuple(spec for spec in self.order if spec.world == "group")

    @cached_property
    def step_nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes that run once per step, in the order in which every rank runs them."""
        return tuple(spec for spec in self.order if spec.world == "step")

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Who reads each value (``prompt`` included), in definition order."""
        readers: dict[str, list[str]] = {PROMPT: [], **{spec.id: [] for spec in self.nodes}}
        for spec in self.nodes:
            for id in parents(spec):
                readers[id].append(spec.id)
        return {id: tuple(who) for id, who in readers.items()}

    def call(self, spec: NodeSpec, inputs: Mapping[str, object], roles: Mapping[str, object]) -> object:
        """Run the function behind a node. Per group that gives an awaitable, per step the value."""
        function = self.functions[spec.id]
        if spec.world == "group":
            return function.run_async(inputs, roles, spec.settings)
        return function.run(inputs, roles, spec.settings)


def parents(spec: NodeSpec) -> tuple[str, ...]:
    """The ids a node reads, each once, in parameter order."""
    return edges_of(spec.inputs)


def edges_of(inputs: Mapping[str, str | tuple[str, ...]]) -> tuple[str, ...]:
    """The ids in a node's inputs, each once, in order."""
    ids = (id for value in inputs.values() for id in ((value,) if isinstance(value, str) else value))
    return tuple(dict.fromkeys(ids))


def topological(reads: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The keys, each after the keys it reads; among those ready, the first in the mapping. Cycles are left out."""
    waiting = {id: {r for r in read if r in reads} for id, read in reads.items()}
    rank = {id: place for place, id in enumerate(reads)}
    readers: dict[str, list[str]] = {id: [] for id in reads}
    for id, read in waiting.items():
        for r in read:
            readers[r].append(id)
    ready = [rank[id] for id, read in waiting.items() if not read]
    names, done = list(reads), list[str]()
    while ready:
        id = names[heappop(ready)]
        done.append(id)
        for reader in readers[id]:
            waiting[reader].discard(id)
            if not waiting[reader]:
                heappush(ready, rank[reader])
    return tuple(done)


def boundary_inputs(graph: Graph) -> tuple[str, ...]:
    """The per-group nodes whose values per-step nodes read: what is kept of every draw, in definition order."""
    read = {id for spec in graph.step_nodes for id in parents(spec)}
    return tuple(spec.id for spec in graph.nodes if spec.world == "group" and spec.id in read)


def models_of(graph: Graph) -> Mapping[str, frozenset[str]]:
    """Every Model the graph needs, with the roles it needs it in (generate, score, train)."""
    kinds: dict[str, set[str]] = {}
    for spec in graph.nodes:
        for role in spec.roles.values():
            if role.model is not None:
                kinds.setdefault(role.model, set()).add(role.kind)
    return {model: frozenset(roles) for model, roles in kinds.items()}


def python_only(graph: Graph) -> tuple[str, ...]:
    """The ids of nodes whose functions cannot be imported by name, so that only Python can run the graph again."""
    return tuple(spec.id for spec in graph.nodes if spec.use.startswith("python:"))
