"""Engine and trainer on one device that has not the memory for both: who of them has its own, and when that changes.

    sampling  ── train ──>    the engine sleeps, then the trainer wakes                                  ── training
    training  ── publish ──>  the engine's weights wake, they are sent, the trainer sleeps, the KV wakes ── sampling
    sampling  ── score ──>    the KV cache sleeps, the trainer's weights wake; and back                  ── sampling

So at no time is more held than one side and the other's weights. Without ``offload`` nothing moves.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from stretto.config.sections import OffloadConfig
from stretto.memory import give_back_memory, peak_bytes, reset_peak
from stretto.roles import MemoryLevel, TrainMemory
from stretto.runtime.fleet import Fleet
from stretto.runtime.learning import Learners, set_trainer_memory

__all__ = ["Colocation"]

ASLEEP: dict[str, MemoryLevel] = {"none": "awake", "kv": "kv_released", "weights": "weights_released"}
RESTING: dict[str, TrainMemory] = {"none": "awake", "optimizer": "optimizer_released", "weights": "weights_released"}


class Colocation:
    """Both begin awake, which counts as training: the first publication follows."""

    def __init__(
        self,
        rollers: Fleet,
        learners: Learners,
        offload: OffloadConfig,
        *,
        peak: Callable[[], int | None] = peak_bytes,
        reset: Callable[[], object] = reset_peak,
    ) -> None:
        """``peak`` and ``reset``: of the device's memory, in bytes."""
        self._rollers, self._learners = rollers, learners
        self._asleep: MemoryLevel = ASLEEP[offload.engine]
        self._resting: TrainMemory = RESTING[offload.trainer]
        self._acts = offload.acts
        self._peak, self._reset = peak, reset
        self._peaks: dict[str, float] = {}
        self._sampling = False

    async def train(self) -> None:
        """Give the memory to the trainer."""
        if not self._acts or not self._sampling:
            return
        self._note("memory/rollout_mb")
        if self._asleep != "awake":
            await self._rollers.set_memory(self._asleep)
        self._reset()
        await self._trainer("awake")
        self._sampling = False

    @asynccontextmanager
    async def publishing(self) -> AsyncGenerator[None]:
        """Send weights inside; afterwards the engine has the memory."""
        if not self._acts:
            yield
            return
        await self.train()
        self._note("memory/train_mb")
        give_back_memory()  # of what training computed with
        self._reset()
        if self._asleep == "weights_released":
            await self._rollers.set_memory("kv_released")
        yield
        await self._trainer(self._resting)
        if self._asleep != "awake":
            await self._rollers.set_memory("awake")
        self._sampling = True
        self._note("memory/publish_mb")
        self._reset()

    @asynccontextmanager
    async def scoring(self) -> AsyncGenerator[None]:
        """Let the trainer compute without learning inside, while nothing is sampled."""
        visits = self._sampling and self._resting == "weights_released"
        if visits:
            if self._asleep != "awake":
                await self._rollers.set_memory("kv_released")
            await self._trainer("optimizer_released")
        yield
        if visits:
            await self._trainer(self._resting)
            if self._asleep != "awake":
                await self._rollers.set_memory("awake")

    def peaks(self) -> dict[str, float]:
        """The most memory that was held while the engine sampled, the trainer trained, and weights were sent, since the
        last time it was asked, in MB; empty where nothing moves or nobody can tell."""
        found, self._peaks = self._peaks, {}
        return found

    async def _trainer(self, level: TrainMemory) -> None:
        if self._resting != "awake":
            await self._learners.call(set_trainer_memory, level)

    def _note(self, name: str) -> None:
        peak = self._peak()
        if peak is not None:
            self._peaks[name] = max(self._peaks.get(name, 0.0), peak / 2**20)
