"""One draw made again: its per-group nodes are run in this process, from the record or from its prompt.

What was sampled is taken from the record where the nodes behind it only give rewards. Otherwise the engine samples it
anew: with the same weights and seeds, so to the same bits where the engine promises that.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from stretto.errors import ConfigError
from stretto.graph import Graph, NodeSpec, parents, run_group
from stretto.runtime.binding import GroupBinding
from stretto.runtime.phases import Phase
from stretto.runtime.saved import one_boundary
from stretto.store import RecordedGroup
from stretto.types import Group, Prompt

__all__ = ["CallGroupNode", "Drawing", "make_again", "part_through", "sampled_of", "version_of"]

CallGroupNode = Callable[[Graph, NodeSpec, Mapping[str, object], Mapping[str, object]], Awaitable[object]]
"""``call_group_node``, or what watches it."""

JUDGING = frozenset({"score", "charge_overlong"})
"""Built-in nodes that give rewards and change nothing else of a group."""

JUDGED_NOTES = frozenset({"logged", "uncharged"})
"""What they leave in a trajectory's ``info``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawing:
    """A draw to make again: its prompt, the step it was admitted for, and what is recorded of it, if anything."""

    draw: int
    prompt: Prompt
    step: int
    recorded: RecordedGroup | None


def part_through(graph: Graph, node: str) -> Graph:
    """The per-group nodes that ``node`` needs, and itself."""
    needed, waiting = {node}, [node]
    while waiting:
        for id in parents(graph.by_id[waiting.pop()]):
            if id in graph.by_id and id not in needed:
                needed.add(id)
                waiting.append(id)
    return replace(graph, nodes=tuple(spec for spec in graph.nodes if spec.id in needed), output=node)


def sampled_of(graph: Graph, node: str, drawing: Drawing) -> dict[str, object] | None:
    """What is known of the draw before ``node`` without an engine, by node id; None if one has to sample it.

    That is the recorded group without its rewards, where everything between sampling and the record only judges.
    """
    part = part_through(graph, node)
    if not any(_samples(spec) for spec in part.nodes):
        return {}
    between = [spec for spec in part_through(graph, one_boundary(graph)).nodes if not _samples(spec)]
    samplers = [spec.id for spec in graph.nodes if _samples(spec)]
    only_judged = len(samplers) == 1 and all(spec.use in JUDGING for spec in between)
    if not only_judged or drawing.recorded is None or node in samplers:
        return None
    return {samplers[0]: _unjudged(drawing.recorded.group)}


def version_of(drawing: Drawing, phase: Phase) -> int:
    """The weights that sampled a draw: recorded ones, or those of the schedule. ConfigError if they were several."""
    if drawing.recorded is None:
        if phase.in_flight != "drain":
            raise _several(drawing, phase.in_flight)
        # Waves are admitted in order, so none is older than the one before it.
        return max(0, *(step - phase.pool.staleness_of(step) for step in range(drawing.step + 1)))
    versions = {span.version for t in drawing.recorded.group.trajectories for span in t.versions}
    if len(versions) != 1:
        raise _several(drawing, phase.in_flight)
    return versions.pop()


async def make_again(
    phase: Phase, binding: GroupBinding, drawing: Drawing, node: str, known: Mapping[str, object], call: CallGroupNode
) -> dict[str, object]:
    """The values of ``node`` and of all it needs; those in ``known`` are not made."""
    graph = part_through(phase.graph, node)

    async def invoke(spec: NodeSpec, inputs: Mapping[str, object]) -> object:
        if spec.id in known:
            return known[spec.id]
        return await call(phase.graph, spec, inputs, binding.bind(spec, drawing.draw, drawing.step))

    return await run_group(graph, drawing.prompt, invoke)


def _samples(spec: NodeSpec) -> bool:
    return any(role.kind == "generate" for role in spec.roles.values())


def _unjudged(group: Group) -> Group:
    """A group as it was before anything judged it."""
    rows = (
        replace(t, rewards={}, reward=None, info={k: v for k, v in t.info.items() if k not in JUDGED_NOTES})
        for t in group.trajectories
    )
    return replace(group, trajectories=tuple(rows))


def _several(drawing: Drawing, in_flight: str) -> ConfigError:
    return ConfigError(
        f"draw {drawing.draw} was not sampled by one version of the weights (schedule.in_flight={in_flight}), so it "
        "cannot be sampled again. Debug a node behind it, from what is recorded."
    )
