"""What a run is made of, once opened: rollers, learners, and what passes between them. ``build`` opens them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stretto.config.by_step import ByStep
from stretto.data.seeds import Namespace
from stretto.data.tokens import Tokenizer
from stretto.roles import DataPlane, InFlight, RolloutEngine, Sampling, TrainBackend, WeightSync
from stretto.runtime.binding import GroupBinding
from stretto.runtime.colocation import Colocation
from stretto.runtime.fleet import Fleet
from stretto.runtime.learning import Learners, export_to
from stretto.runtime.roller import Roller
from stretto.runtime.worker import Worker
from stretto.types import Metrics

__all__ = ["Here", "LocalPublication", "Parts", "Publication"]


class Publication(Protocol):
    """Takes the policy's weights from the learners to the engines of a fleet."""

    async def publish(
        self, version: int, fleet: Fleet, *, in_flight: InFlight = "drain", clear: Sequence[str] = ()
    ) -> Metrics:
        """One window as ``WeightSync.publish`` has it."""
        ...

    def changing(self) -> None:
        """The learners' weights are about to change: they are no more those that were published."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalPublication:
    """From the one learner to engines of this process."""

    worker: Worker
    sync: WeightSync

    async def publish(
        self, version: int, fleet: Fleet, *, in_flight: InFlight = "drain", clear: Sequence[str] = ()
    ) -> Metrics:
        """As ``Publication`` says."""
        engines: list[RolloutEngine] = []
        for roller in fleet.rollers:
            assert isinstance(roller, Roller), roller
            engines.append(roller.engine)
        weights = self.worker.models.tensors("policy")
        return await self.sync.publish(version, weights, engines, in_flight=in_flight, clear=clear)

    def changing(self) -> None:
        """Nobody asks: engines here are not lost by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Here:
    """The parts of a run that has all of them in this process."""

    roller: Roller
    worker: Worker


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """The parts of one run. ``evaluators``: those on which evaluations run beside training, each by itself.
    ``here``: what they are made of where that is this process."""

    rollers: Fleet
    learners: Learners
    publication: Publication
    plane: DataPlane
    colocation: Colocation
    tokenizer: Tokenizer
    precision: str
    deterministic: bool
    evaluators: tuple[Fleet, ...] = ()
    here: Here | None = None

    @property
    def worker(self) -> Worker:
        """The learner, where it is in this process."""
        assert self.here is not None, "the learners are elsewhere"
        return self.here.worker

    @property
    def backend(self) -> TrainBackend:
        """Its backend; to be used on the worker's thread."""
        return self.worker.models

    @property
    def engine(self) -> RolloutEngine:
        """The engine, where it is in this process."""
        assert self.here is not None, "the engines are elsewhere"
        return self.here.roller.engine

    def binding(
        self, namespace: Namespace, sampling: Sampling, steps: int | None = None, temperature: ByStep | None = None
    ) -> GroupBinding:
        """What serves per-group nodes in this process; see ``Roller.binding``."""
        assert self.here is not None, "the engines are elsewhere"
        return self.here.roller.binding(namespace, sampling, steps, temperature)

    async def publish(self, version: int, in_flight: InFlight = "drain", *, clear: Sequence[str] = ()) -> Metrics:
        """Send the policy's weights to the engines as ``version``; what matches ``clear`` is cleared there first."""
        async with self.colocation.publishing():
            return await self.publication.publish(version, self.rollers, in_flight=in_flight, clear=clear)

    async def export(self, model: str, folder: Path) -> None:
        """Write ``model`` as a Hugging Face folder, tokenizer included."""
        async with self.colocation.scoring():
            await self.learners.call(export_to, model, self.tokenizer, folder)
