"""Runs the two parts of a graph: per group, branches at the same time; per step, one node after the other.

What a node's call means (binding roles, recording times) is the caller's ``invoke``; here is only who runs when. Every
node runs once, after all it reads, and sees all of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TypeAlias

from stretto.graph.specs import PROMPT, Graph, NodeSpec, boundary_inputs, parents
from stretto.types import Group, Prompt

__all__ = ["InvokeGroup", "InvokeStep", "run_group", "run_step"]

InvokeGroup: TypeAlias = Callable[[NodeSpec, Mapping[str, object]], Awaitable[object]]
"""Runs a per-group node on its inputs by parameter name."""

InvokeStep: TypeAlias = Callable[[NodeSpec, Mapping[str, object]], object]
"""Runs a per-step node on its inputs by parameter name."""


async def run_group(graph: Graph, prompt: Prompt, invoke: InvokeGroup) -> dict[str, object]:
    """The values of all per-group nodes of one draw, by id (``prompt`` among them).

    Nodes that do not wait for each other run at the same time. The first failure cancels the others, waits for them
    and is raised (of several at once the first in order; the others are its notes).
    """
    values: dict[str, object] = {PROMPT: prompt}
    waiting = {spec.id: sum(id != PROMPT for id in parents(spec)) for spec in graph.group_nodes}
    ready = [spec for spec in graph.group_nodes if not waiting[spec.id]]
    running: dict[asyncio.Task[object], NodeSpec] = {}
    try:
        while ready or running:
            if len(ready) == 1 and not running:
                # A chain needs no task.
                spec = ready.pop()
                values[spec.id] = await invoke(spec, _inputs(spec, values))
                done = [spec]
            else:
                for spec in ready:
                    running[asyncio.ensure_future(_run(invoke, spec, values))] = spec
                ready = []
                done = await _finished(running, values)
            for spec in done:
                for id in graph.readers[spec.id]:
                    if id in waiting:
                        waiting[id] -= 1
                        if not waiting[id]:
                            ready.append(graph.by_id[id])
    finally:
        await _cancel(running)
    return values


async def _run(invoke: InvokeGroup, spec: NodeSpec, values: Mapping[str, object]) -> object:
    return await invoke(spec, _inputs(spec, values))


async def _finished(
    running: MutableMapping[asyncio.Task[object], NodeSpec], values: MutableMapping[str, object]
) -> list[NodeSpec]:
    """Wait for at least one node; store the values of those that are done."""
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    done = [(task, spec) for task, spec in running.items() if task.done()]
    failures: list[tuple[NodeSpec, BaseException]] = []
    for task, spec in done:
        del running[task]
        if task.cancelled():
            failures.append((spec, asyncio.CancelledError(f"node {spec.id!r} was cancelled")))
        elif (error := task.exception()) is not None:
            failures.append((spec, error))
        else:
            values[spec.id] = task.result()
    if failures:
        first = failures[0][1]
        for spec, error in failures[1:]:
            first.add_note(f"Node {spec.id!r} failed as well: {type(error).__name__}: {error}")
        raise first
    return [spec for _, spec in done]


async def _cancel(running: Mapping[asyncio.Task[object], NodeSpec]) -> None:
    for task in running:
        task.cancel()
    if running:
        # What they raise while being cancelled comes after the cause that is already on its way.
        await asyncio.gather(*running, return_exceptions=True)


def run_step(
    graph: Graph, groups: Mapping[str, tuple[Group, ...]], invoke: InvokeStep, through: str | None = None
) -> dict[str, object]:
    """The values of all per-step nodes of one step, by id, run in plan order; ``through`` a node and no further.

    ``groups`` holds, for every id of ``boundary_inputs(graph)``, what that node gave for each draw of the step, in draw
    order.
    """
    missing = [id for id in boundary_inputs(graph) if id not in groups]
    assert not missing, f"run_step needs the groups of {missing}"
    values: dict[str, object] = dict(groups)
    for spec in graph.step_nodes:
        values[spec.id] = invoke(spec, _inputs(spec, values))
        if spec.id == through:
            break
    return {spec.id: values[spec.id] for spec in graph.step_nodes if spec.id in values}


def _inputs(spec: NodeSpec, values: Mapping[str, object]) -> dict[str, object]:
    return {
        name: values[source] if isinstance(source, str) else tuple([values[id] for id in source])
        for name, source in spec.inputs.items()
    }
