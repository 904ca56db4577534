"""What a checkpoint of a run holds, and how a run goes on from one.

    state.json            pool (waves, next draw), what the order of prompts has learned, counters, what nodes keep;
                          prompts and Models by which a job is known to fit
    groups/ID.jsonl       finished groups that no step has taken yet, by the per-group node that made them
    the backend's files   weights and optimizer state of every Model

Taken inside the window, so weights, pool and events agree. The folder, its manifest and its durability are the store's.
"""

import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import ResumeError
from stretto.graph import boundary_inputs
from stretto.plane.local import LocalPlane
from stretto.roles import DataPlane
from stretto.runtime.build import Job, needed_models
from stretto.runtime.drawn import Drawn
from stretto.runtime.first_done import AnyPool
from stretto.runtime.learning import Learners
from stretto.runtime.orders import PromptOrder
from stretto.runtime.phases import Phase
from stretto.store import Checkpoint, read_groups, read_json, write_json
from stretto.types import Json

__all__ = ["Captured", "Position", "capture", "position_after"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Position:
    """Where a run goes on: in phase ``phase_index`` after ``steps_done`` steps; at the start of it without a pool."""

    phase_index: int = 0
    steps_done: int = 0
    evaluated_at: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    skipped_in_row: int = 0
    memory: Mapping[str, Json] = field(default_factory=dict[str, Json])
    pool: Mapping[str, Any] | None = None
    order: Mapping[str, Any] = field(default_factory=dict[str, Any])
    finished: tuple[Drawn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """What a checkpoint holds, as it was at one moment of the window. ``held`` writes what the learners hold, and the
    groups that wait."""

    state: Mapping[str, Any]
    held: Callable[[Path], None]

    def write(self, folder: Path) -> None:
        """Write everything but the manifest. On any thread, if Models were copied."""
        write_json(folder / "state.json", self.state)
        (folder / "groups").mkdir()
        self.held(folder)


async def capture(
    job: Job, pool: AnyPool, order: PromptOrder, learners: Learners, skipped_in_row: int, *, copy: bool
) -> Captured:
    """Take it on the event loop, where the pool lives: groups may finish while files are written. ``copy``: Models go
    on changing before it is written."""
    state = {
        "pool": pool.state(),
        "order": order.state(),
        "skipped_in_row": skipped_in_row,
        "data_hash": job.data_hash,
        "set_hashes": job.set_hashes,
        "exports": job.exports,
        "models": {model: "train" in roles for model, roles in needed_models(job.graphs).items()},
    }
    state, waiting = deepcopy(state), pool.finished()
    nodes = waiting[0].refs if waiting else ()
    held = await learners.state({node: [drawn.refs[node] for drawn in waiting] for node in nodes}, copy=copy)
    return Captured(state={**state, "memory": dict(held.memory)}, held=held.write)


def position_after(checkpoint: Checkpoint, job: Job, plane: DataPlane | None = None) -> Position:
    """The position a checkpoint was taken at. After a phase that is done comes the start of the next.

    Groups that wait go into ``plane`` (None: one of this process). Raises ResumeError if ``job`` cannot go on from it:
    with other prompts, where every draw would mean another; without the phase it was taken in; with Models it does not
    hold; with groups waiting that the phase has no use for.
    """
    header = checkpoint.header
    state = read_json(checkpoint.path / "state.json")
    names = [phase.name for phase in job.phases]
    if state["data_hash"] != job.data_hash:
        raise _unfit(
            checkpoint, "the prompts are not those it was taken with (prompts, seed and tokenizer decide them)"
        )
    for name, known in job.set_hashes.items():
        if state.get("set_hashes", {}).get(name, known) != known:
            raise _unfit(
                checkpoint,
                f"the prompts of evaluation set {name.partition('/')[2]} are not those it was taken with, and its "
                "numbers would be of two different sets; under another name they may be any",
            )
    if header.phase not in names:
        raise _unfit(checkpoint, f"it was taken in phase {header.phase}, which the recipe does not have")
    for model, roles in needed_models(job.graphs).items():
        if model not in state["models"] or ("train" in roles and not state["models"][model]):
            raise _unfit(checkpoint, f"the workflow needs Model {model!r} ({', '.join(sorted(roles))}), which it lacks")
    index = names.index(header.phase)
    if header.phase_done and index + 1 < len(names):
        return Position(phase_index=index + 1)
    finished = _read_finished(checkpoint.path / "groups", plane or LocalPlane())
    _check_waiting(checkpoint, job.phases[index], finished, state["pool"])
    return Position(
        phase_index=index,
        steps_done=header.steps_done,
        evaluated_at=header.evaluated_at,
        metrics=header.metrics,
        skipped_in_row=state["skipped_in_row"],
        memory=state.get("memory", {}),
        pool=state["pool"],
        order=state.get("order", {}),
        finished=finished,
    )


def _check_waiting(checkpoint: Checkpoint, phase: Phase, finished: tuple[Drawn, ...], pool: Mapping[str, Any]) -> None:
    """What was drawn ahead is trained on, so it has to be what this phase's nodes give, as fresh, and wanted."""
    begun, draws, end = pool["next_step"], pool["next_draw"], phase.pool.total_draws
    if begun > phase.steps or (end is not None and draws > end):
        raise ResumeError(
            f"phase {phase.name} has begun {begun} steps ({draws} draws), and is now given {phase.steps} steps"
            f"{'' if end is None else f' and {end} draws'}. Set steps, epochs or warmup.max_steps to as many or more."
        )
    nodes = set(boundary_inputs(phase.graph))
    if any(set(drawn.facts) != nodes for drawn in finished):
        raise _unfit(checkpoint, f"groups of other nodes wait in it than those of workflow {phase.graph.name}")
    greedy = {spec.settings["greedy"] for spec in phase.graph.nodes if spec.use == "rollout"}
    beside = {any(facts.greedy for facts in drawn.facts.values()) for drawn in finished}
    if len(greedy) == 1 and beside - greedy:
        held, wanted = ("without", "compares with one") if True in greedy else ("with", "samples none")
        raise _unfit(checkpoint, f"groups wait in it {held} a greedy attempt, and workflow {phase.graph.name} {wanted}")
    if ("waves" in pool) != (phase.pool.over_sample is None):
        raise _unfit(checkpoint, "its draws were admitted under another schedule.over_sample")
    for step, lag in _lags(pool):
        most = phase.pool.staleness_of(step)
        if lag > most:
            raise _unfit(checkpoint, f"groups wait in it that lag {lag} step, and schedule.max_staleness={most}")


def _lags(pool: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Of each wave, or each draw: the step that may take it next, and by how many steps it will lag then."""
    if "waves" in pool:
        return [(wave["step"], wave["step"] - wave["version"]) for wave in pool["waves"]]
    return [(pool["next_step"], pool["next_step"] - version) for version in pool["admitted"].values()]


def _unfit(checkpoint: Checkpoint, why: str) -> ResumeError:
    return ResumeError(
        f"the run cannot go on from checkpoint {checkpoint.path.name}: {why}. Bring that back as it was, or start a "
        "new run; model.path=RUN/model begins with the weights of one that is done."
    )


def _read_finished(folder: Path, plane: DataPlane) -> tuple[Drawn, ...]:
    by_node = {name.removesuffix(".jsonl"): read_groups(folder / name) for name in sorted(os.listdir(folder))}
    draws = sorted({group.draw for groups in by_node.values() for group in groups})
    found = {node: {group.draw: group for group in groups} for node, groups in by_node.items()}
    return tuple(Drawn.of(draw, {node: found[node][draw] for node in found}, plane) for draw in draws)
