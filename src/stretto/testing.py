"""Fakes for devices, and small builders of values: for tests, benchmarks and authors of nodes. Numpy only.

The fakes keep the laws of what they stand in for (seeds, versions, windows, bits), so a run on them is a real run of
the driver, pool, runner and store; only the arithmetic of a Model is missing.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stretto.errors import EngineError
from stretto.roles import (
    Completion,
    EngineStatus,
    Episode,
    InFlight,
    MemoryLevel,
    NamedTensor,
    Request,
    Sampling,
    TrainMemory,
    TurnBudget,
    Want,
    WeightSink,
)
from stretto.types import (
    Batch,
    Column,
    Group,
    Ints,
    Json,
    Key,
    LossRef,
    Message,
    Metric,
    Metrics,
    Prompt,
    Span,
    Trajectory,
    UpdateReport,
)

T = TypeVar("T")

__all__ = ["FakeBackend", "FakeEngine", "FakeEnvironment", "make_batch", "make_group", "make_prompt", "same"]


def make_prompt(uid: str = "p", token_ids: Sequence[int] = (1, 5, 6), answer: str = "7") -> Prompt:
    """A prompt with an answer."""
    return Prompt(uid=uid, text=uid, token_ids=np.asarray(token_ids, np.int32), data={"answer": answer})


def make_group(draw: int = 0, rewards: Sequence[float] = (0.0, 1.0), length: int = 4, version: int = 0) -> Group:
    """A group with one trajectory per reward: three prompt tokens, ``length`` written ones."""
    prompt = make_prompt(uid=f"p{draw}")
    rng = np.random.default_rng(draw)
    trajectories = tuple(
        Trajectory(
            key=Key(draw, sample),
            token_ids_T=np.concatenate([prompt.token_ids, rng.integers(4, 90, length)]).astype(np.int32),
            mask_T=np.array([0, 0, 0, *[1] * length], np.uint8),
            logprobs_T=np.concatenate([np.zeros(3), -rng.random(length)]).astype(np.float32),
            versions=(Span(version, length),),
            finish="stop",
            rewards={"reward": reward},
            reward=reward,
        )
        for sample, reward in enumerate(rewards)
    )
    return Group(draw=draw, prompt=prompt, trajectories=trajectories)


def make_batch(num_groups: int = 2, rewards: Sequence[float] = (0.0, 1.0), length: int = 4) -> Batch:
    """A batch of ``make_group``s with draws 0, 1, ..."""
    return Batch(groups=tuple(make_group(d, rewards, length) for d in range(num_groups)))


def same(a: Group, b: Group) -> bool:
    """Whether two groups hold the same bits."""
    if (a.draw, a.prompt.uid, len(a.trajectories)) != (b.draw, b.prompt.uid, len(b.trajectories)):
        return False
    return all(
        (s.key, s.versions, s.finish, s.text, s.reward, dict(s.rewards), s.temperature)
        == (t.key, t.versions, t.finish, t.text, t.reward, dict(t.rewards), t.temperature)
        and np.array_equal(s.token_ids_T, t.token_ids_T)
        and np.array_equal(s.mask_T, t.mask_T)
        and s.logprobs_T.tobytes() == t.logprobs_T.tobytes()
        for s, t in zip(a.trajectories, b.trajectories, strict=True)
    )


class FakeEnvironment:
    """The role Environment. ``FakeEnvironment()``: attempts are one turn. With ``make`` (a user's class) and a budget:
    they are played against ``make(prompt)`` in place, and what it raises is let through."""

    draw = 0

    def __init__(self, make: Callable[[Prompt], Any] | None = None, budget: TurnBudget | None = None) -> None:
        self._make, self.budget = make, budget

    async def play(self, prompt: Prompt, sample: int, conversation: Callable[[Episode], Awaitable[T]]) -> T:
        """The conversation with a fresh environment."""
        assert self._make is not None
        return await conversation(_FakeEpisode(self._make(prompt)))


class _FakeEpisode:
    def __init__(self, made: Any) -> None:
        self._made = made

    async def start(self) -> str | tuple[Message, ...] | None:
        return self._made.start()

    async def reply(self, text: str) -> str | tuple[Message, ...] | None:
        return self._made.reply(text)

    async def end(self) -> Json:
        return self._made.score() if hasattr(self._made, "score") else None


class FakeEngine:
    """A RolloutEngine whose tokens are a function of the seed and of the weights it holds.

    ``length`` tokens are written: half of them at first, the others once the completion's time is over, by the weights
    that are held then. Times are lognormal with median ``delay_s`` (0: none) and ``spread`` the deviation of their
    logarithm, by seed; at most ``slots`` completions take theirs at once (0: any number).
    """

    def __init__(
        self, *, length: int = 8, vocab: int = 90, delay_s: float = 0.0, spread: float = 0.0, slots: int = 0
    ) -> None:
        self._length, self._vocab = length, vocab
        self._delay_s, self._spread = delay_s, spread
        self._room = asyncio.Semaphore(slots) if slots else nullcontext()
        self._version, self._weights, self._closed = -1, 0.0, False
        self._memory: MemoryLevel = "awake"
        self._pending: dict[str, float] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.generated_tokens = 0

    async def generate(self, request: Request) -> AsyncIterator[Completion]:
        """Yield ``length`` tokens per seed, as each is done."""
        if self._closed or self._version < 0 or self._memory != "awake" or self._weights != self._weights:
            raise EngineError(
                f"The fake engine cannot serve request {request.id}: it is closed, or holds no weights (memory "
                f"{self._memory})."
            )
        self._pending[request.id] = 0.0
        self._idle.clear()
        length = min(self._length, request.sampling.max_tokens)
        making = [self._complete(i, seed, length) for i, seed in enumerate(request.seeds)]
        tasks = [asyncio.ensure_future(made) for made in making] if self._delay_s else []
        try:
            for made in asyncio.as_completed(tasks) if tasks else making:
                yield await made
        finally:
            for task in tasks:
                task.cancel()
            self._pending.pop(request.id, None)
            if not self._pending:
                self._idle.set()

    def seconds(self, seed: int) -> float:
        """How long the completion of ``seed`` takes."""
        if not self._delay_s:
            return 0.0
        normal = np.random.default_rng(seed % 2**64).standard_normal()
        return float(self._delay_s * np.exp(self._spread * normal))

    async def _complete(self, index: int, seed: int, length: int) -> Completion:
        async with self._room:
            begun_by, token_ids = self._version, self._tokens(seed, length)
            if self._delay_s:
                await asyncio.sleep(self.seconds(seed))
            half = length if self._version == begun_by else length // 2
            token_ids = np.concatenate([token_ids[:half], self._tokens(seed, length)[half:]])
            spans = Span(begun_by, half), Span(self._version, length - half)
            self.generated_tokens += length
            return Completion(
                index=index,
                token_ids_T=token_ids,
                logprobs_T=token_ids * np.float32(-0.01),
                versions=tuple(span for span in spans if span.length),
                finish="length",
            )

    def _tokens(self, seed: int, length: int) -> Ints:
        """What the weights that are held write for this seed."""
        mixed = np.uint64(seed) ^ np.uint64(hash(self._weights) & 0xFFFF)
        mixed = mixed * np.arange(1, length + 1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(29)
        return (mixed % np.uint64(self._vocab)).astype(np.int32) + np.int32(4)

    async def abort(self, ids: Sequence[str]) -> None:
        """Nothing to stop: completions are made at once."""

    @asynccontextmanager
    async def update_weights(self, version: int, *, in_flight: InFlight) -> AsyncGenerator[WeightSink]:
        """Take weights; ``drain`` waits until nothing is pending."""
        if self._memory == "weights_released":
            raise EngineError("The fake engine's weights are released: there is no room to publish into.")
        if in_flight == "drain":
            await self._idle.wait()
        sink = _Sink()
        yield sink
        self._weights, self._version = sink.total, version

    async def set_memory(self, level: MemoryLevel) -> None:
        """Remember what was released: without its weights it knows them no more."""
        if self._pending:
            raise EngineError(f"The fake engine's memory cannot be set to {level} while requests are pending.")
        self._memory = level
        if level == "weights_released":
            self._weights = float("nan")

    async def status(self) -> EngineStatus:
        """Version and what is pending."""
        return EngineStatus(
            version=self._version,
            healthy=not self._closed and self._version >= 0,
            pending=dict(self._pending),
            memory=self._memory,
            generated_tokens=self.generated_tokens,
        )

    async def probe_invariance(self) -> None:
        """Sample one request alone and beside others, and compare."""
        sampling = Sampling(max_tokens=self._length)
        alone = [c async for c in self.generate(_request("alone", (1,), sampling))]
        company = [c async for c in self.generate(_request("company", (7, 1, 9), sampling)) if c.index == 1]
        if alone[0].token_ids_T.tolist() != company[0].token_ids_T.tolist():
            raise EngineError("The fake engine gives other tokens in company. Its seeds are not independent.")

    async def close(self) -> None:
        """Refuse further requests."""
        self._closed = True


def _request(name: str, seeds: tuple[int, ...], sampling: Sampling) -> Request:
    return Request(id=name, token_ids=np.asarray([1], np.int32), seeds=seeds, sampling=sampling)


class _Sink:
    def __init__(self) -> None:
        self.total = 0.0

    def clear(self, patterns: Sequence[str]) -> None:
        self.total = 0.0

    def write(self, tensor: NamedTensor) -> None:
        self.total += float(np.sum(tensor.data))


class FakeBackend:
    """A TrainBackend with one weight per Model, moved by a function of the batch, in ``step_s`` seconds an update."""

    def __init__(self, models: Sequence[str] = ("policy",), *, step_s: float = 0.0) -> None:
        self._step_s = step_s
        self._memory: TrainMemory = "awake"
        self._weights = {m: np.zeros(1) for m in models}
        self._gradients = dict.fromkeys(models, 0.0)

    def score(self, model: str, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        """The sampler's log-probs for every want."""
        logprobs = np.concatenate([t.logprobs_T for t in batch.trajectories])
        return tuple(Column.per_token(name, batch, logprobs) for name in sorted(want))

    def accumulate(self, model: str, batch: Batch, columns: tuple[Column, ...], loss: LossRef) -> Metrics:
        """Add a number that depends on the tokens and columns."""
        assert self._memory == "awake", f"a trainer whose memory is {self._memory} cannot learn"
        tokens = int(np.concatenate([t.token_ids_T for t in batch.trajectories]).sum())
        total = sum(float(np.sum(c.values)) for c in columns)
        self._gradients[model] += tokens * 1e-6 + total * 1e-9
        return {"loss": Metric("mean", total, max(batch.num_written, 1))}

    def update(self, model: str, lr: float) -> UpdateReport:
        """Move the weight."""
        time.sleep(self._step_s)
        self._weights[model] = self._weights[model] + lr * self._gradients[model]
        self._gradients[model] = 0.0
        return UpdateReport(model=model, metrics={"lr": Metric("mean", lr)})

    def tensors(self, model: str) -> Iterator[NamedTensor]:
        """The one weight."""
        yield NamedTensor(name="weight", data=self._weights[model])

    def copy(self, source: str, target: str) -> None:
        """Copy the weight."""
        self._weights[target] = self._weights[source].copy()

    def reset_optimizer(self, model: str) -> None:
        """There is no optimizer state."""

    def capture(self, *, copy: bool = False) -> Callable[[Path], None]:
        """What writes the weights as JSON."""
        text = json.dumps({m: w.tolist() for m, w in self._weights.items()})

        def write(path: Path) -> None:
            (path / "weights.json").write_text(text, encoding="utf-8")

        return write

    def set_memory(self, level: TrainMemory) -> None:
        """Remember what was released."""
        self._memory = level

    def load(self, path: Path) -> None:
        """Read them."""
        weights = json.loads((path / "weights.json").read_text(encoding="utf-8"))
        self._weights = {m: np.asarray(w) for m, w in weights.items()}

    def export(self, model: str, path: Path) -> None:
        """Write the weight of one Model."""
        (path / f"{model}.json").write_text(json.dumps(self._weights[model].tolist()), encoding="utf-8")

    def close(self) -> None:
        """Nothing to free."""
