"""Which nodes run per group and which per step, and whether every edge fits: one pass over the nodes in order.

What reads the prompt, or comes of it, runs per group, until a parameter of type ``tuple[Group, ...]`` is fed by a
Group: that node, and all that reads it, runs per step. A node that reads nothing made of the prompt runs where its
readers run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.errors import GraphError
from stretto.graph.annotations import fits, members, narrow, type_name
from stretto.graph.nodes import Node, Param
from stretto.graph.specs import PROMPT, World, edges_of
from stretto.types import Batch, Group, Prompt

__all__ = ["Placed", "place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A node with its world (None: not known yet), its output's type there, and whether it takes groups across."""

    id: str
    node: Node[Any]
    inputs: Mapping[str, str | tuple[str, ...]]
    world: World | None = None
    output: object = None
    crosses: bool = False

    @property
    def who(self) -> str:
        """How errors name it."""
        return f"node {self.id!r} ({self.node.name})"


@dataclass(frozen=True, slots=True)
class _Edge:
    param: Param
    source: str
    world: World | None
    type: object

    @property
    def crosses(self) -> bool:
        return self.world == "group" and self.param.across and fits(self.type, Group)


def place(nodes: Sequence[Placed]) -> dict[str, Placed]:
    """Every node with its world. ``nodes`` come in an order in which each stands after what it reads."""
    done: dict[str, Placed] = {}
    for node in nodes:
        edges = _edges(node, done)
        for edge in edges:
            _check_type(node, edge)
        world = _world(node, edges)
        if world == "step":
            _check_makes_no_group(node, edges)
        crosses = any(edge.crosses for edge in edges)
        done[node.id] = replace(node, world=world, output=narrow(node.node.output, world), crosses=crosses)
    for node in reversed(nodes):
        if done[node.id].world is None:
            done[node.id] = _with_readers(done[node.id], done)
    for node in nodes:
        _check_sides(done[node.id], _edges(node, done))
    return done


def _edges(node: Placed, done: Mapping[str, Placed]) -> list[_Edge]:
    edges: list[_Edge] = []
    for name, value in node.inputs.items():
        param = node.node.params[name]
        for id in (value,) if isinstance(value, str) else value:
            world, kind = ("group", Prompt) if id == PROMPT else (done[id].world, done[id].output)
            edges.append(_Edge(param, id, world, kind))
    return edges


def _check_type(node: Placed, edge: _Edge) -> None:
    if edge.crosses or fits(edge.type, edge.param.type):
        return
    source, target = members(edge.type), edge.param.type
    if fits(Batch, target) and all(fits(part, Group) for part in source):
        remedy = "Collect the groups first: batch = collect(group)."
    elif edge.param.kind == "setting":
        remedy = "It is a setting: give it a value, not the output of a node."
    elif any(part is type(None) for part in source) and fits(_without_none(edge.type), target):
        remedy = "It may be None: give the parameter a type that takes None, or have the node always return a value."
    else:
        remedy = "Pass it the output of a node that returns that, or change the annotation."
    raise GraphError(
        f"{node.who}: input {edge.param.name!r} takes {type_name(target)}, and {edge.source!r} is "
        f"{type_name(edge.type)}. {remedy}"
    )


def _without_none(kind: object) -> object:
    kept = [part for part in members(kind) if part is not type(None)]
    return kept[0] if len(kept) == 1 else object


def _world(node: Placed, edges: Sequence[_Edge]) -> World | None:
    if any(edge.crosses or edge.world == "step" for edge in edges):
        return "step"
    if any(edge.world == "group" for edge in edges) or node.node.output is Group:
        return "group"
    return "step" if node.node.output is Batch else None


def _with_readers(node: Placed, done: Mapping[str, Placed]) -> Placed:
    readers = [placed for placed in done.values() if node.id in edges_of(placed.inputs)]
    world: World = "group" if readers and all(reader.world == "group" for reader in readers) else "step"
    return replace(node, world=world, output=narrow(node.node.output, world))


def _why_step(edges: Sequence[_Edge]) -> str:
    below = next((edge.source for edge in edges if edge.world == "step"), None)
    return f"reads {below!r}" if below is not None else "takes the groups of a step"


def _check_makes_no_group(node: Placed, edges: Sequence[_Edge]) -> None:
    parts = members(narrow(node.node.output, "step"))
    if any(isinstance(part, type) and issubclass(part, Group) for part in parts):
        raise GraphError(
            f"{node.who} returns a Group and {_why_step(edges)}: a per-group node below the boundary. Make groups "
            "before they are collected, or return a Batch."
        )


def _check_sides(node: Placed, edges: Sequence[_Edge]) -> None:
    if node.world == "group":
        for edge in edges:
            if edge.world == "step":
                raise GraphError(
                    f"{node.who} runs per group and reads {edge.source!r}, which is made per step, after the groups. "
                    "Use it in a per-step node, or split the node that makes it in two."
                )
        return
    why = _why_step(edges)
    for edge in edges:
        if edge.world == "group" and not edge.crosses:
            raise GraphError(
                f"{node.who} runs per step (it {why}) and reads {edge.source!r}, which is made per group. Only "
                "Groups cross, through a parameter of type tuple[Group, ...], as in collect(group)."
            )
    if node.node.is_async:
        raise GraphError(
            f"{node.who} is async and runs per step (it {why}), where nodes run one by one. Make it a plain def."
        )
