"""What a checkpoint of a run holds, and how a run goes on from one.

    state.json            pool (waves, next draw), counters
    groups/ID.jsonl       finished groups that no step has taken yet, by the per-group node that made them
    the backend's files   weights and optimizer state of every Model

Taken inside the window, so weights, pool and events agree. The folder, its manifest and its durability are the store's.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import ResumeError
from stretto.roles import TrainBackend
from stretto.runtime.phases import Phase
from stretto.runtime.pool import Drawn, Pool
from stretto.store import Checkpoint, read_groups, read_json, write_groups, write_json

__all__ = ["Position", "position_after", "write_state"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Position:
    """Where a run goes on: in phase ``phase_index`` after ``steps_done`` steps; at the start of it without a pool."""

    phase_index: int = 0
    steps_done: int = 0
    evaluated_at: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    skipped_in_row: int = 0
    pool: Mapping[str, Any] | None = None
    finished: tuple[Drawn, ...] = ()


def write_state(folder: Path, pool: Pool, backend: TrainBackend, skipped_in_row: int, data_hash: str) -> None:
    """Write everything but the manifest. Called on the worker's thread while nothing else runs."""
    state = {"pool": pool.state(), "skipped_in_row": skipped_in_row, "data_hash": data_hash}
    write_json(folder / "state.json", state)
    (folder / "groups").mkdir()
    waiting = pool.finished()
    for node in waiting[0].groups if waiting else ():
        write_groups(folder / "groups" / f"{node}.jsonl", [drawn.groups[node] for drawn in waiting])
    backend.save(folder)


def position_after(checkpoint: Checkpoint, phases: tuple[Phase, ...], data_hash: str) -> Position:
    """The position a checkpoint was taken at. After a phase that is done comes the start of the next.

    Raises ResumeError if the prompts are not those of the run: every draw would mean another prompt.
    """
    header = checkpoint.header
    state = read_json(checkpoint.path / "state.json")
    if state["data_hash"] != data_hash:
        raise ResumeError(
            f"the prompts are not those the run was begun with (their hash is {data_hash}, in {checkpoint.path.name} "
            f"{state['data_hash']}). Bring the data back as it was, or start a new run."
        )
    index = [phase.name for phase in phases].index(header.phase)
    if header.phase_done and index + 1 < len(phases):
        return Position(phase_index=index + 1)
    return Position(
        phase_index=index,
        steps_done=header.steps_done,
        evaluated_at=header.evaluated_at,
        metrics=header.metrics,
        skipped_in_row=state["skipped_in_row"],
        pool=state["pool"],
        finished=_read_finished(checkpoint.path / "groups"),
    )


def _read_finished(folder: Path) -> tuple[Drawn, ...]:
    by_node = {name.removesuffix(".jsonl"): read_groups(folder / name) for name in sorted(os.listdir(folder))}
    draws = sorted({group.draw for groups in by_node.values() for group in groups})
    found = {node: {group.draw: group for group in groups} for node, groups in by_node.items()}
    return tuple(Drawn(draw=draw, groups={node: found[node][draw] for node in found}) for draw in draws)
