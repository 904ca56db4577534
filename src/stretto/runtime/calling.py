"""Calls the function behind a node: what it raises names the node, and what it gives is what it says it gives.

Owns no order, time or record; those are the runner's and the worker's.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, cast

from stretto.errors import NodeError, StrettoError
from stretto.graph import Graph, NodeSpec
from stretto.types import Group

__all__ = ["CallStepNode", "call_group_node", "call_step_node", "check_group"]

CallStepNode: TypeAlias = Callable[[Graph, NodeSpec, Mapping[str, object], Mapping[str, object]], object]
"""``call_step_node``, or what watches it: a node of a graph, its inputs and its roles give its value."""


async def call_group_node(
    graph: Graph, spec: NodeSpec, inputs: Mapping[str, object], roles: Mapping[str, object]
) -> object:
    """The value of a per-group node. Raises NodeError, or as it is what Stretto's own parts raise."""
    try:
        value = await cast(Awaitable[object], graph.call(spec, inputs, roles))
    except (StrettoError, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _failed(spec, error) from error  # one that the node let through from a task of its own
    except BaseException as error:
        raise _failed(spec, error) from error  # an exit too: it is the node's failure, not the run's end
    return _checked(graph, spec, value)


def call_step_node(graph: Graph, spec: NodeSpec, inputs: Mapping[str, object], roles: Mapping[str, object]) -> object:
    """The value of a per-step node. Raises NodeError, or as it is what Stretto's own parts raise."""
    try:
        value = graph.call(spec, inputs, roles)
    except StrettoError:
        raise
    except BaseException as error:
        raise _failed(spec, error) from error
    return _checked(graph, spec, value)


def check_group(node: str, value: object, draw: int) -> Group:
    """What a node hands over to the step for ``draw``: a group of that very draw that has something to train on."""
    assert isinstance(value, Group), (node, type(value))
    if value.draw != draw:
        raise NodeError(
            f"node {node!r} gave a group of draw {value.draw} where draw {draw} was its input, and the draw is what a "
            "group is known by. Make the group with draw=group.draw."
        )
    if not value.trajectories:
        raise NodeError(
            f"node {node!r} gave a group without trajectories for draw {draw}, which nothing can be learned from. "
            "Keep at least one."
        )
    return value


def _checked(graph: Graph, spec: NodeSpec, value: object) -> object:
    classes = graph.functions[spec.id].output_classes
    if not isinstance(value, classes):
        raise NodeError(
            f"node {spec.id!r} ({spec.use}) gave a {type(value).__name__}, and it says that it gives {spec.output}. "
            "Return that, or change its annotation."
        )
    return value


def _failed(spec: NodeSpec, error: BaseException) -> NodeError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return NodeError(f"node {spec.id!r} ({spec.use}) failed: {what}{where}. Mend the node; --debug shows more.")
