"""What a run is made of, once opened: engine, worker, transport, judges, tokenizer. ``build`` opens them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.config.by_step import ByStep
from stretto.data.seeds import Namespace
from stretto.data.tokens import Tokenizer
from stretto.environments.episodes import Episodes
from stretto.roles import InFlight, RolloutEngine, Sampling, TrainBackend, TurnBudget, WeightSync
from stretto.runtime.binding import GroupBinding, GroupJudge
from stretto.runtime.colocation import Colocation
from stretto.runtime.exports import export_model
from stretto.runtime.worker import Worker
from stretto.types import Metrics

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """The parts of one run in one process. ``judges``: those of evaluation sets by their keys, and ``judge`` as "".
    ``eval_engines``: those on which evaluations run beside training."""

    engine: RolloutEngine
    worker: Worker
    sync: WeightSync
    colocation: Colocation
    judge: GroupJudge
    judges: Mapping[str, GroupJudge]
    tokenizer: Tokenizer
    seed: int
    deadline_s: float
    precision: str
    deterministic: bool
    eval_engines: tuple[RolloutEngine, ...] = ()
    episodes: Episodes | None = None
    budget: TurnBudget | None = None

    @property
    def backend(self) -> TrainBackend:
        """The backend; to be used on the worker's thread."""
        assert self.worker.backend is not None
        return self.worker.backend

    def binding(
        self, namespace: Namespace, sampling: Sampling, steps: int | None = None, temperature: ByStep | None = None
    ) -> GroupBinding:
        """What serves per-group nodes whose draws are counted in ``namespace``, in a phase of ``steps``.

        ``temperature``: in place of the sampling's, where it changes by step.
        """
        return GroupBinding(
            engine=self.engine,
            judge=self.judge,
            tokenizer=self.tokenizer,
            sampling=sampling,
            deadline_s=self.deadline_s,
            seed=self.seed,
            namespace=namespace,
            episodes=self.episodes,
            budget=self.budget,
            steps=steps,
            temperature=temperature,
        )

    async def publish(self, version: int, in_flight: InFlight = "drain", *, clear: Sequence[str] = ()) -> Metrics:
        """Send the policy's weights to the engine as ``version``; what matches ``clear`` is cleared there first."""
        async with self.colocation.publishing():
            weights = self.backend.tensors("policy")
            return await self.sync.publish(version, weights, [self.engine], in_flight=in_flight, clear=clear)

    async def export(self, model: str, folder: Path) -> None:
        """Write ``model`` as a Hugging Face folder, tokenizer included."""
        async with self.colocation.scoring():
            await self.worker.call(export_model, self.backend, model, self.tokenizer, folder)
