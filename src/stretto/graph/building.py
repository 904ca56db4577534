"""Builds a Graph from drafts of its nodes, and checks everything that can be known before it runs.

Traced workflows and written ones come through here alike. Which of the two worlds a node runs in is decided in
``worlds``; here are ids, parameters, references, cycles, what nobody reads, and Models.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stretto.errors import GraphError, nearest
from stretto.graph.annotations import fits, type_name
from stretto.graph.nodes import MODEL_ROLES, Node, use_of
from stretto.graph.settings import checked
from stretto.graph.specs import PROMPT, Graph, NodeSpec, Role, edges_of, topological
from stretto.graph.worlds import Placed, place
from stretto.roles import ROLES
from stretto.types import StepReport, UpdateReport

__all__ = ["Draft", "Drafted", "build_graph", "check_models"]

_ID = re.compile(r"^[^\W\d][\w-]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A node before it is checked. ``settings`` are those given; ``on`` None takes the node's own Model."""

    id: str
    node: Node[Any]
    inputs: Mapping[str, str | tuple[str, ...]]
    settings: Mapping[str, object]
    on: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A whole graph before it is checked; ``settings`` as in Graph."""

    name: str
    nodes: tuple[Draft, ...]
    output: str
    settings: Mapping[str, object] = field(default_factory=dict[str, object])


def build_graph(drafted: Drafted) -> Graph:
    """The checked Graph. Raises GraphError naming the nodes, what came and what to do."""
    try:
        _check_ids(drafted)
        for draft in drafted.nodes:
            _check_params(draft)
        _check_references(drafted)
        order = _order(drafted)
        drafts = {draft.id: draft for draft in drafted.nodes}
        worlds = place([Placed(id=id, node=drafts[id].node, inputs=drafts[id].inputs) for id in order])
        _check_ends(drafted, worlds)
    except GraphError as error:
        raise GraphError(f"workflow {drafted.name!r}: {error}") from None
    return Graph(
        name=drafted.name,
        nodes=tuple(_spec(draft, worlds) for draft in drafted.nodes),
        output=drafted.output,
        settings=drafted.settings,
        functions={draft.id: draft.node for draft in drafted.nodes},
    )


def check_models(
    graph: Graph,
    models: Collection[str] | Mapping[str, Collection[str]],
    services: Collection[str] = frozenset(ROLES) - MODEL_ROLES,
) -> None:
    """Refuse a Model or role that no config provides.

    ``models``: names, or names with the roles (generate, score, train) each may serve. ``services``: the roles without
    a Model that the run has (judge, tokenize).
    """
    roles_of: Mapping[str, Collection[str]]
    roles_of = (
        cast(Mapping[str, Collection[str]], models)
        if isinstance(models, Mapping)
        else dict.fromkeys(models, MODEL_ROLES)
    )
    for spec in graph.nodes:
        for role in spec.roles.values():
            what = f"workflow {graph.name!r}: node {spec.id!r} ({spec.use})"
            if role.model is None:
                if role.kind not in services:
                    raise GraphError(f"{what} needs the role {role.kind}, and this run has none. Configure it.")
            elif role.model not in roles_of:
                raise GraphError(
                    f"{what} is on the Model {role.model!r}, which no config provides."
                    f"{nearest(role.model, roles_of)} Name a Model of the run with on=."
                )
            elif role.kind not in roles_of[role.model]:
                raise GraphError(
                    f"{what} wants to {role.kind} on the Model {role.model!r}, which serves only "
                    f"{', '.join(sorted(roles_of[role.model])) or 'nothing'}. Put the node on another Model with on=."
                )


def _check_ids(drafted: Drafted) -> None:
    seen: dict[str, Draft] = {}
    for draft in drafted.nodes:
        if draft.id == PROMPT:
            raise GraphError(f"a node is called {PROMPT!r}, which is what the graph starts from. Give it another id.")
        if not _ID.match(draft.id):
            raise GraphError(
                f"{draft.id!r} is no id: it starts with a letter and has letters, digits, - and _. Give another id."
            )
        if draft.id in seen:
            raise GraphError(
                f"two nodes are called {draft.id!r} ({seen[draft.id].node.name} and {draft.node.name}). "
                "Give each its own id."
            )
        seen[draft.id] = draft
    if not seen:
        raise GraphError("there is no node in it. A workflow needs at least a rollout, a collect and an update.")


def _check_params(draft: Draft) -> None:
    params, who = draft.node.params, f"node {draft.id!r} ({draft.node.name})"
    takes = draft.node.of_kind("input", "setting")
    for name in (*draft.inputs, *draft.settings):
        if name not in takes:
            role = " The runtime binds its roles; use on= to choose the Model." if name in params else ""
            raise GraphError(f"{who} has no input or setting {name!r}.{role or nearest(name, takes)}")
        if name in draft.inputs and name in draft.settings:
            raise GraphError(f"{who}: {name!r} is given twice, as an input and as a setting. Leave one out.")
    for name, value in draft.inputs.items():
        if isinstance(value, tuple) != params[name].variadic:
            wants = "a list of ids" if params[name].variadic else "one id"
            raise GraphError(f"{who}: input {name!r} takes {wants}, got {value!r}. Write {wants}.")
    for name, param in params.items():
        if param.kind != "role" and param.required and name not in draft.inputs and name not in draft.settings:
            raise GraphError(
                f"{who} is missing its {param.kind} {name!r} ({type_name(param.type)}). "
                + ("Pass it the output of a node." if param.kind == "input" else "Give it a value.")
            )
    if draft.on is not None and not draft.node.has_model:
        raise GraphError(f"{who} is on={draft.on!r} and has no role on a Model. Leave on= out.")


def _check_references(drafted: Drafted) -> None:
    known = {PROMPT, *(draft.id for draft in drafted.nodes)}
    for draft in drafted.nodes:
        for id in edges_of(draft.inputs):
            if id not in known:
                raise GraphError(f"node {draft.id!r} reads {id!r}, and there is no such node.{nearest(id, known)}")
    if drafted.output not in known:
        raise GraphError(
            f"its output is {drafted.output!r}, and there is no such node.{nearest(drafted.output, known)}"
        )


def _order(drafted: Drafted) -> tuple[str, ...]:
    reads = {draft.id: edges_of(draft.inputs) for draft in drafted.nodes}
    order = topological(reads)
    if len(order) < len(reads):
        left = {id: [r for r in read if r in reads and r not in order] for id, read in reads.items() if id not in order}
        path = [next(iter(left))]
        while path[-1] not in path[:-1]:
            path.append(left[path[-1]][0])
        circle = " -> ".join(reversed(path[path.index(path[-1]) :]))
        raise GraphError(f"its nodes wait for each other in a circle: {circle}. Take one of these inputs out.")
    return order


def _check_ends(drafted: Drafted, worlds: Mapping[str, Placed]) -> None:
    read = {id for draft in drafted.nodes for id in edges_of(draft.inputs)}
    if PROMPT not in read:
        raise GraphError("no node reads the prompt, so nothing would be rolled out. Start with rollout(prompt).")
    for draft in drafted.nodes:
        if draft.id not in read and draft.id != drafted.output:
            raise GraphError(
                f"no node reads {draft.id!r} (the {type_name(draft.node.output)} of {draft.node.name}). "
                "Pass it to a node, or take it out."
            )
    if drafted.output == PROMPT or worlds[drafted.output].world != "step":
        boundary = any(placed.crosses for placed in worlds.values())
        raise GraphError(
            f"its output {drafted.output!r} is made per group, and a step must report. "
            + ("Return the result of a per-step node." if boundary else "Collect the groups: batch = collect(group).")
        )
    output = worlds[drafted.output].output
    if not fits(output, StepReport) and not fits(output, UpdateReport):
        raise GraphError(
            f"its output {drafted.output!r} is a {type_name(output)}, and a step ends in a StepReport or an "
            "UpdateReport. Return report(...) or the result of an update node."
        )


def _spec(draft: Draft, worlds: Mapping[str, Placed]) -> NodeSpec:
    placed = worlds[draft.id]
    assert placed.world is not None
    model = draft.on or draft.node.model
    settings = {
        param.name: draft.settings[param.name]
        if param.name in draft.settings
        else checked(param.default, param.type, f"node {draft.node.name!r}: the default of {param.name!r}")
        for param in draft.node.params.values()
        if param.kind == "setting" and param.name not in draft.inputs
    }
    roles = {
        param.name: Role(kind=param.role, model=model if param.role in MODEL_ROLES else None)
        for param in draft.node.params.values()
        if param.role is not None
    }
    return NodeSpec(
        id=draft.id,
        use=use_of(draft.node),
        inputs={name: value for name, value in draft.inputs.items() if value != ()},
        roles=roles,
        settings=settings,
        output=type_name(placed.output),
        world=placed.world,
    )
