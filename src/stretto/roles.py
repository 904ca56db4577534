"""The Protocols behind which libraries stand, and the handles through which nodes reach Models.

Two layers. *Backends of a library* (``RolloutEngine``, ``TrainBackend``, ``WeightSync``) are implemented
once per library on floor 3 and named in one place (``runtime/build.py``). *Roles* (``Generate``, ``Judge``, ``Score``)
are what a node asks for by annotating a parameter; the runtime binds each to a Model.

Floor 0 knows no torch: a tensor that crosses these interfaces is a ``Buffer``, which both sides understand.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from stretto.types import (
    Batch,
    Column,
    Finish,
    Floats,
    Group,
    Ints,
    Json,
    LossRef,
    Message,
    Metrics,
    Prompt,
    Span,
    UpdateReport,
)

__all__ = [
    "ROLES",
    "BatchInvariant",
    "Buffer",
    "Completion",
    "DataPlane",
    "EngineStatus",
    "Environment",
    "Episode",
    "Generate",
    "Judge",
    "Memory",
    "MemoryLevel",
    "NamedTensor",
    "Ref",
    "Request",
    "RolloutEngine",
    "Sampling",
    "Score",
    "ShowsGradients",
    "Tokenize",
    "Train",
    "TrainBackend",
    "TrainMemory",
    "TurnBudget",
    "Want",
    "WeightSink",
    "WeightSync",
]

T = TypeVar("T")

Buffer: TypeAlias = Any
"""A tensor of the library on both ends (torch.Tensor here). Opaque to floor 0."""

Want = Literal["logprobs", "entropy", "values"]
"""What a backend can score per token."""

MemoryLevel = Literal["awake", "kv_released", "weights_released"]
"""How much device memory an engine holds: all; no KV cache; neither KV cache nor weights."""

TrainMemory = Literal["awake", "optimizer_released", "weights_released"]
"""How much device memory a trainer holds: all; no optimizer state; neither that nor weights."""

InFlight = Literal["drain", "keep", "recompute"]
"""What becomes of requests under way when weights change: they end before (drain); they go on with the keys and values
that older weights made (keep); those are made anew, and they go on (recompute)."""


# --- rollout engines -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 cut nothing.

    They cut in this order: temperature, top-k, top-p, min-p. Log-probs are of the distribution sampled from, after all
    of them; greedy ones are of the distribution at temperature 1. A row ends with a token of ``stop_ids``, and with the
    token after which the text of its new tokens contains one of ``stop``.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 16
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """``len(seeds)`` completions of one prompt; they share its computation. ``seeds[i]`` is all the chance in sample
    ``i``; how many siblings it has may change its last bits, what else runs may not.

    Seeds are 64-bit. ``deadline_s`` counts from admission; past it the engine raises EngineError naming the request.
    """

    id: str
    token_ids: Ints
    seeds: tuple[int, ...]
    sampling: Sampling
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """One finished completion: the new tokens only, with their sampler log-probs.

    The stop token is among them, and so are all tokens of a stop string: the policy wrote them. ``stop`` is the stop
    string that ended it, None if something else did.
    """

    index: int
    token_ids_T: Ints
    logprobs_T: Floats
    versions: tuple[Span, ...]
    finish: Finish
    stop: str | None = None

    def cut(self, text: str) -> str:
        """``text``, the decoded tokens, up to the stop string that ended them; whole if none did."""
        return text if self.stop is None else text.partition(self.stop)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Where an engine stands. ``pending`` names unfinished requests with the seconds since their admission.

    ``remembered_tokens`` of prompts were known from earlier prompts; ``prefilled_tokens`` were computed.
    """

    version: int
    healthy: bool
    pending: Mapping[str, float]
    memory: MemoryLevel = "awake"
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    remembered_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedTensor:
    """A weight by its Hugging Face name."""

    name: str
    data: Buffer


class WeightSink(Protocol):
    """Where published weights go, inside one update window. Tensors are copied before ``write`` returns."""

    def clear(self, patterns: Sequence[str]) -> None:
        """Set every weight whose name matches one of ``patterns`` (``*``: all) to NaN, before the first is written, so
        that what is not written afterwards shows in every log-prob. Weights that cannot hold NaN are passed over."""
        ...

    def write(self, tensor: NamedTensor) -> None:
        """Take one tensor. An unknown name or a wrong shape raises EngineError."""
        ...


class RolloutEngine(Protocol):
    """Makes completions. Safe to call from one event loop; the work happens elsewhere."""

    def generate(self, request: Request) -> AsyncIterator[Completion]:
        """Yield each completion as it finishes, in any order."""
        ...

    async def abort(self, ids: Sequence[str]) -> None:
        """Stop these requests; what they wrote so far is yielded with ``finish="aborted"``."""
        ...

    def update_weights(self, version: int, *, in_flight: InFlight) -> AbstractAsyncContextManager[WeightSink]:
        """A window in which all weights are replaced. Entering waits for running requests (``drain``) or pauses them.

        Tokens that paused requests write afterwards carry the new version. Leaving flushes every cache that depends on
        weights, but for what ``in_flight`` keeps, and sets the version. If the body raises, the engine is unhealthy and
        refuses requests until a later window succeeds.
        """
        ...

    async def set_memory(self, level: MemoryLevel) -> None:
        """Release or take back device memory."""
        ...

    async def status(self) -> EngineStatus:
        """Version, health and what is pending."""
        ...

    async def close(self) -> None:
        """Stop. Pending requests raise EngineError. Idempotent."""
        ...


@runtime_checkable
class BatchInvariant(Protocol):
    """An engine whose bits do not depend on what else it generates: what ``schedule.deterministic`` needs."""

    async def probe_invariance(self) -> None:
        """Check it on the weights that are held; EngineError if it does not hold here."""
        ...


# --- training backends ---------------------------------------------------------------------------------------------


class TrainBackend(Protocol):
    """Holds Models on one worker, scores and trains them. Synchronous: called from the learner's thread only."""

    def score(self, model: str, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        """Per-token Columns named as wanted, float32, without gradient; 0 where ``mask`` is 0.

        Log-probs and entropy are at each row's temperature.
        """
        ...

    def accumulate(self, model: str, batch: Batch, columns: tuple[Column, ...], loss: LossRef) -> Metrics:
        """Add the gradient of ``loss`` over ``batch`` (cut into micro-batches at will) to what is accumulated.

        The Column ``weights`` (``stretto.algorithms.aggregation_weights``) carries every denominator of the update.
        """
        ...

    def update(self, model: str, lr: float) -> UpdateReport:
        """Clip, step the optimizer, clear the gradient. A not-finite gradient skips the step; the report says so."""
        ...

    def tensors(self, model: str) -> Iterator[NamedTensor]:
        """What is published and exported, by Hugging Face name, in a fixed order (tied weights once per name)."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Set the weights of Model ``target`` to those of ``source`` (its value head, if it has one, stays)."""
        ...

    def reset_optimizer(self, model: str) -> None:
        """Forget the optimizer's state, as at the start of a phase."""
        ...

    def capture(self, *, copy: bool = False) -> Callable[[Path], None]:
        """What writes weights and optimizer state of every Model, as they are now, under a folder that exists.

        To be called before anything changes them; with ``copy`` at any time, on any thread, for the memory of a copy.
        It may be asked for at every level of memory.
        """
        ...

    def load(self, path: Path) -> None:
        """Restore what ``capture`` wrote, to the bit."""
        ...

    def set_memory(self, level: TrainMemory) -> None:
        """Release or take back device memory. Training needs all; scoring and publication need weights."""
        ...

    def export(self, model: str, path: Path) -> None:
        """Write ``model`` as an ordinary Hugging Face folder, tokenizer not included."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


@runtime_checkable
class ShowsGradients(Protocol):
    """A backend that shows what it has accumulated: to look at, and to tell where two runs part."""

    def gradients(self, model: str) -> Iterator[NamedTensor]:
        """What is accumulated since the last update, by name."""
        ...


# --- data between workers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ref:
    """Where groups lie that were put into a data plane. ``handle`` is the plane's own; ``num_bytes`` 0: unknown."""

    handle: Any
    num_bytes: int = 0


class DataPlane(Protocol):
    """Hands groups from the worker that made them to those that train on them; whoever drives moves only refs."""

    def put(self, groups: Sequence[Group]) -> Ref:
        """Take groups; they can be got until they are freed."""
        ...

    def get(self, refs: Sequence[Ref]) -> tuple[Group, ...]:
        """The groups of ``refs``, in their order."""
        ...

    def free(self, refs: Sequence[Ref]) -> None:
        """Forget what lies there. Idempotent."""
        ...


class WeightSync(Protocol):
    """Moves the weights of a Model from its trainer to engines. A transport; ``publish`` is one window."""

    async def publish(
        self,
        version: int,
        tensors: Iterable[NamedTensor],
        engines: Sequence[RolloutEngine],
        *,
        in_flight: InFlight = "drain",
        clear: Sequence[str] = (),
    ) -> Metrics:
        """Send ``tensors`` as ``version`` to every engine and check that each holds it. Raises EngineError.

        ``clear``: what every engine clears first (``WeightSink.clear``)."""
        ...


# --- roles: what a node asks for by annotation ---------------------------------------------------------------------


@runtime_checkable
class Generate(Protocol):
    """Completions by one Model, bound to the draw that a per-group node is running for."""

    @property
    def model(self) -> str:
        """The Model's name."""
        ...

    @property
    def draw(self) -> int:
        """The draw of the Group being made."""
        ...

    @property
    def temperature(self) -> float:
        """The temperature completions are sampled at."""
        ...

    def complete(
        self,
        token_ids: Ints,
        *,
        samples: Sequence[int],
        turn: int = 0,
        max_tokens: int | None = None,
        greedy: bool = False,
    ) -> AsyncIterator[Completion]:
        """One completion per sample index; its seed is a function of (run seed, draw, sample, turn).

        ``max_tokens``: less than the recipe's ``sampling.max_tokens``, where the budget of a row leaves less.
        ``greedy``: the most likely token each time, whatever the recipe's temperature.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBudget:
    """How far an attempt may go: completions, and tokens of its row. ``on_length``: what a cut completion means."""

    max_turns: int
    max_total_tokens: int
    on_length: Literal["end", "reply"] = "end"


class Episode(Protocol):
    """One environment, made for one attempt. Its failures are the recipe's policy's: let them through."""

    async def start(self) -> str | tuple[Message, ...] | None:
        """Make it; what it says first."""
        ...

    async def reply(self, text: str) -> str | tuple[Message, ...] | None:
        """Tell it what the policy wrote; what it says then, None at the end."""
        ...

    async def end(self) -> Json:
        """Its score (a number, numbers by name, or None), the last thing it is asked."""
        ...


@runtime_checkable
class Environment(Protocol):
    """The environment of a recipe, bound to the draw that a per-group node is running for."""

    @property
    def draw(self) -> int:
        """The draw of the Group being made."""
        ...

    @property
    def budget(self) -> TurnBudget | None:
        """How far an attempt may go; None if the recipe has no environment, so that every attempt is one turn."""
        ...

    async def play(self, prompt: Prompt, sample: int, conversation: Callable[[Episode], Awaitable[T]]) -> T:
        """What ``conversation`` gives with a fresh environment; it is called again if the environment failed and the
        recipe's policy is to retry. Its random numbers are a function of (run seed, draw, sample)."""
        ...


@runtime_checkable
class Judge(Protocol):
    """The rewards of a recipe."""

    async def judge(self, group: Group) -> Group:
        """The group with ``rewards`` and ``reward`` of every trajectory set, by the failure policy of the recipe."""
        ...


@runtime_checkable
class Tokenize(Protocol):
    """The tokenizer of the policy."""

    @property
    def draw(self) -> int:
        """The draw of the Group being made."""
        ...

    @property
    def eos_id(self) -> int:
        """The token that ends a completion."""
        ...

    def encode(self, text: str) -> Ints:
        """Token ids of a completion's text, no special tokens added."""
        ...

    def decode(self, token_ids: Ints) -> str:
        """The text of token ids, special tokens left out."""
        ...

    def ending(self, prompt: Prompt) -> Ints:
        """What ends an answer to ``prompt``: of messages, what ends a turn by the chat template; of text, the eos."""
        ...

    def encode_chat(self, messages: Sequence[Message]) -> Ints:
        """A conversation by the chat template, up to where the assistant's next answer begins."""
        ...

    def continue_chat(
        self, token_ids: Ints, before: Sequence[Message], written: str, then: Sequence[Message]
    ) -> Ints | None:
        """What goes behind a row of ``before`` and the policy's ``written`` so that it reads ``then`` and may answer.

        None if the chat template would rewrite what stands there: then a new trajectory has to begin.
        """
        ...


@runtime_checkable
class Score(Protocol):
    """Per-token numbers of one Model over a Batch, no gradient."""

    @property
    def model(self) -> str:
        """The Model's name."""
        ...

    def score(self, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        """Columns named as wanted (``frozenset({"logprobs"})``): per token, float32, 0 where the mask is 0.

        Log-probs and entropy are at each row's temperature.
        """
        ...


@runtime_checkable
class Train(Protocol):
    """Learning by one Model."""

    @property
    def model(self) -> str:
        """The Model's name."""
        ...

    @property
    def step(self) -> int:
        """The step of the phase, from 0."""
        ...

    def score(self, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        """As ``Score.score``: the Model as it is now, also between two updates of a step."""
        ...

    def learn(self, batch: Batch, columns: tuple[Column, ...], loss: LossRef) -> UpdateReport:
        """One optimizer update of ``loss`` over the whole batch, at the learning rate of the step."""
        ...


@runtime_checkable
class Memory(Protocol):
    """What a per-step node keeps from step to step: JSON of its own, in every checkpoint, None at a phase's start."""

    value: Json


ROLES: Mapping[str, type] = {
    "generate": Generate,
    "judge": Judge,
    "tokenize": Tokenize,
    "environment": Environment,
    "score": Score,
    "train": Train,
    "memory": Memory,
}
"""Every role by name: a parameter annotated with one of these types is bound by the runtime."""
