"""What a driver asks of the ranks that train: functions of a Worker, each the same call on every rank.

    Learners.call(function, ...)  ──▶  function(worker, ...) on every rank, in one order  ──▶  what rank 0 gives

One rank in this process, or many in processes of their own: the functions are the same. What they are given is small
(names, numbers, refs); what they read is on the worker.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np

from stretto.data.tokens import Tokenizer
from stretto.roles import Ref, TrainMemory, Want
from stretto.runtime.exports import export_model
from stretto.runtime.worker import StepResult, Worker
from stretto.store import write_groups
from stretto.types import Batch, Column, Json

__all__ = [
    "Learners",
    "LocalLearners",
    "State",
    "begin_phase",
    "export_to",
    "load_state",
    "sampler_gap",
    "score_batch",
    "set_trainer_memory",
    "take_state",
    "train_step",
]

P = ParamSpec("P")
T = TypeVar("T")
Waiting = Mapping[str, Sequence[Ref]]
"""Groups that no step has taken, by the per-group node that made them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """What the ranks hold at one moment. ``write`` puts it into a folder that exists, on any thread; ``memory`` is what
    nodes keep from step to step."""

    write: Callable[[Path], None]
    memory: Mapping[str, Json]


class Learners(Protocol):
    """Every rank of a run's training."""

    async def call(self, function: Callable[Concatenate[Worker, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function(worker, ...)`` on every rank; what rank 0 gives."""
        ...

    async def state(self, waiting: Waiting, *, copy: bool) -> State:
        """What a checkpoint holds of them and of ``waiting``. ``copy``: they go on before it is written."""
        ...


class LocalLearners:
    """The one rank of a run in this process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def call(self, function: Callable[Concatenate[Worker, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """On the learner's thread."""
        return await self._worker.call(function, self._worker, *args, **kwargs)

    async def state(self, waiting: Waiting, *, copy: bool) -> State:
        """Of this rank."""
        memory = await self.call(take_state, waiting, copy=copy)
        return State(write=self._worker.write_state, memory=memory)


def begin_phase(worker: Worker, phase: int) -> None:
    """Phase ``phase`` begins: its Models start from the policy, and its nodes remember nothing."""
    worker.memory.clear()
    worker.phases[phase].begin(worker.models)


def train_step(worker: Worker, phase: int, step: int, refs: Waiting) -> StepResult:
    """Step ``step`` (from 0) of a phase, on the groups of ``refs``."""
    of = worker.phases[phase]
    groups = {node: worker.plane.get(places) for node, places in refs.items()}
    result = worker.run(of.graph, groups, lambda model: of.lr(model, step), step)
    of.end_step(worker.models, step)
    return result


def score_batch(worker: Worker, model: str, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
    """Per-token Columns of a Model over ``batch``."""
    return worker.models.score(model, batch, want)


def sampler_gap(worker: Worker, refs: Sequence[Ref]) -> float:
    """The mean difference between the policy's log-probs of what was sampled and the sampler's, in nats."""
    batch = Batch(groups=worker.plane.get(refs))
    (trained,) = worker.models.score("policy", batch, frozenset({"logprobs"}))
    sampled, written = np.concatenate([t.logprobs_T for t in batch.trajectories]), batch.mask != 0
    return float(np.abs(trained.values[written] - sampled[written]).mean())


def set_trainer_memory(worker: Worker, level: TrainMemory) -> None:
    """Release device memory, or take it back."""
    worker.models.set_memory(level)


def export_to(worker: Worker, model: str, tokenizer: Tokenizer, folder: Path) -> None:
    """``model`` as a Hugging Face folder, tokenizer included."""
    if worker.leads:
        export_model(worker.models, model, tokenizer, folder)
    else:
        worker.models.export(model, folder)  # takes part, and writes nothing


def load_state(worker: Worker, folder: Path, memory: Mapping[str, Json]) -> None:
    """Go on from a checkpoint."""
    worker.models.load(folder)
    worker.memory = dict(memory)


def take_state(worker: Worker, waiting: Waiting, *, copy: bool) -> Mapping[str, Json]:
    """Take what ``Worker.write_state`` writes, and give what nodes keep."""
    groups = {node: worker.plane.get(refs) for node, refs in waiting.items()} if worker.leads else {}
    models = worker.models.capture(copy=copy)

    def write(folder: Path) -> None:
        for node, found in groups.items():
            write_groups(folder / "groups" / f"{node}.jsonl", found)
        models(folder)

    worker.state_writer = write
    return dict(worker.memory)
