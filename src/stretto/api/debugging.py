"""``stretto.debug``: a step of a recorded run made again, whole or one node of it, in the thread that asks.

The run is only read. Breakpoints mean nothing while the steps before are made again; they open in the node that is
asked for. How a step is made again is ``runtime.replay``; per-group nodes are ``redrawing``.
"""

from bdb import BdbQuit
from collections.abc import Mapping, Sequence
from pathlib import Path

from stretto.api.arguments import PromptsLike, RewardLike, given_prompts, given_reward
from stretto.api.dumping import dump_edges
from stretto.api.host import here
from stretto.api.redrawing import draw_again
from stretto.api.replaying import Breakpoints, Debugged, NodeRow, Place, began, job_of, workflow_of
from stretto.environments.contract import Factory
from stretto.errors import ConfigError, Interrupted, NodeError, RewardError, nearest
from stretto.graph import Graph, NodeSpec, Workflow, parents
from stretto.runtime.build import Given
from stretto.runtime.calling import call_step_node
from stretto.runtime.disposer import Disposer
from stretto.runtime.edges import describe
from stretto.runtime.filters import GroupFilter
from stretto.runtime.opening import open_backend
from stretto.runtime.replay import Past, Replay, start_before
from stretto.store import Difference, GroupBody, RunView, find_run
from stretto.types import Group

__all__ = ["Debugged", "debug"]


def debug(
    run: str | Path,
    step: int,
    *,
    phase: str = "main",
    node: str | None = None,
    draw: int | None = None,
    dump: str | Path | None = None,
    workflow: Workflow | None = None,
    prompts: PromptsLike | Mapping[str, object] | None = None,
    reward: RewardLike | None = None,
    environment: Factory | None = None,
    filter: GroupFilter | None = None,
    runs_dir: str | Path = "runs",
) -> Debugged:
    """Make step ``step`` (from 0) of a recorded run again, and hold its numbers against the recorded ones.

    With ``node`` that node alone, where ``breakpoint()`` opens the debugger: a per-step node with what it read in that
    step, a per-group node for ``draw`` (by default the first of the step). ``dump``: a new folder for what the edges
    carried. Python objects that the run was made with are passed again, as to ``stretto.resume``.

    Raises ConfigError if the record does not hold the step, or the node cannot be made again.
    """
    view = RunView(find_run(Path(runs_dir), str(run)))
    given = Given(
        workflow=workflow,
        prompts=given_prompts(prompts),
        reward=given_reward(reward),
        environment=environment,
        filter=filter,
    )
    call = f"Debug it from Python: stretto.debug({view.name!r}, {step}, "
    graph = workflow_of(view, phase, given, call)
    spec = None if node is None else _node(graph, node)
    if draw is not None and (spec is None or spec.world == "step"):
        raise ConfigError(
            f"draw {draw} is asked for, and only per-group nodes run once a draw. Name one, such as score."
        )
    job = job_of(view, phase, step, given, call, judges=spec is not None and spec.world == "group")
    index = [p.name for p in job.phases].index(phase)
    place = Place(view=view, job=job, past=Past(view), index=index, step=step)
    with Breakpoints() as breakpoints:
        made = _made(place, spec, draw, breakpoints)
    if dump is not None:
        ids = made.values if spec is None else (*parents(spec), spec.id)
        edges = {id: made.values[id] for id in ids if id in made.values}
        dump_edges(Path(dump), edges, place.graph, run=view.name, phase=phase, step=step)
    return made


def _made(place: Place, spec: NodeSpec | None, draw: int | None, breakpoints: Breakpoints) -> Debugged:
    try:
        if spec is not None and spec.world == "group":
            return here(lambda: draw_again(place, spec, draw, breakpoints))
        return here(lambda: _step_again(place, spec, breakpoints))
    except (NodeError, RewardError) as error:
        if isinstance(error.__cause__, BdbQuit) or "BdbQuit" in str(error):
            raise Interrupted("the debugger was left before the node had ended. The run is as it was.") from error
        raise


async def _step_again(at: Place, spec: NodeSpec | None, breakpoints: Breakpoints) -> Debugged:
    """The per-step part, in this thread: whole, or through a node in which breakpoints open."""
    at.past.taken(at.phase, at.step)  # what cannot be had is said before anything is loaded
    start = start_before(at.past, at.job, at.index, at.step)
    target: str | None = None

    def call(graph: Graph, of: NodeSpec, inputs: Mapping[str, object], roles: Mapping[str, object]) -> object:
        with breakpoints.opened(of.id == target):
            return call_step_node(graph, of, inputs, roles)

    async with Disposer() as disposer:
        backend = open_backend(at.job)
        disposer.own("the learner", backend, backend.close)
        replay = Replay(at.job, backend, at.past, call)
        replay.begin(start)
        replay.until(at.index, at.step)
        target = None if spec is None else spec.id
        made = replay.step(through=target)
    recorded = at.past.metrics(at.phase.name, at.step)
    differing, compared = (), 0
    if made.metrics is not None and recorded is not None:
        differing, compared = _differences(recorded, made.metrics), len({*recorded, *made.metrics})
    seconds = {time.id: time.duration_s for time in made.nodes}
    use = {spec.id: spec.use for spec in at.graph.nodes}
    rows = [
        NodeRow(id=id, use=use[id], runs=1, seconds=seconds[id], gave=describe(value))
        for id, value in made.values.items()
    ]
    untrained = () if recorded is not None else ("the run did not train this step to its end",)
    return Debugged(
        run=at.view.name,
        phase=at.phase.name,
        step=at.step,
        deterministic=at.job.recipe.schedule.deterministic,
        node=target,
        began=began(start, at.index, at.step),
        nodes=(*_recorded_rows(at, made.groups), *rows),
        values={**made.groups, **made.values},
        compared=compared,
        differing=differing,
        notes=(*start.skipped, *untrained),
    )


def _node(graph: Graph, node: str) -> NodeSpec:
    if node not in graph.by_id:
        raise ConfigError(f"workflow {graph.name!r} has no node {node!r}.{nearest(node, graph.by_id)}")
    return graph.by_id[node]


def _recorded_rows(at: Place, groups: Mapping[str, Sequence[Group]]) -> list[NodeRow]:
    """The per-group nodes, as they ran in the run."""
    draws = {group.draw for found in groups.values() for group in found}
    seconds: dict[str, list[float]] = {}
    for e in at.view.events:
        if isinstance(e.body, GroupBody) and e.phase == at.phase.name and e.body.draw in draws:
            for ran in e.body.nodes:
                seconds.setdefault(ran.id, []).append(ran.duration_s)
    return [
        NodeRow(
            id=spec.id,
            use=spec.use,
            runs=len(seconds.get(spec.id, ())),
            seconds=sum(seconds.get(spec.id, ())),
            gave=describe(groups[spec.id]) if spec.id in groups else "-",
            recorded=True,
        )
        for spec in at.graph.group_nodes
    ]


def _differences(recorded: Mapping[str, float], now: Mapping[str, float]) -> tuple[Difference, ...]:
    names = sorted({*recorded, *now})
    shown = {name: [repr(found[name]) if name in found else "absent" for found in (recorded, now)] for name in names}
    return tuple(Difference(where=name, a=a, b=b) for name, (a, b) in shown.items() if a != b)
