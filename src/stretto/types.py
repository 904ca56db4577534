"""The nouns: immutable values that every part of Stretto shares. Standard library and numpy only.

Shape letters, as suffixes of names: B trajectories, G group members, T tokens, P prompts, V vocabulary.

Alignment. Every per-token array of a trajectory has the length of its ``token_ids_T`` (prompt and completion in one
row). Entry ``t`` speaks of *writing token t*: ``logprobs_T[t]`` is ``log p(token t | tokens before t)`` and
``values_T[t]`` the value of the state in which token ``t`` is about to be written. Entry 0 is therefore always 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGEST_REWARD",
    "Array",
    "Batch",
    "Column",
    "Credit",
    "Distribution",
    "Finish",
    "Floats",
    "Group",
    "Ints",
    "Json",
    "Key",
    "LossRef",
    "Masks",
    "Message",
    "Metric",
    "Metrics",
    "Occasion",
    "Prompt",
    "Setting",
    "Span",
    "StepReport",
    "Trajectory",
    "UpdateReport",
    "merge_metrics",
]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Setting: TypeAlias = bool | int | float | str | None
Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
Masks: TypeAlias = NDArray[np.uint8]

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""In size. Beyond it training, which computes in float32, would have infinity; and the squares of groups overflow."""

Finish = Literal["stop", "length", "env", "aborted"]
"""Why a trajectory ended: a stop token or string, the token budget, its environment, or an abort."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The identity of a trajectory: the draw of its group, its place among the siblings, its part, its Model."""

    draw: int
    sample: int
    part: int = 0
    model: str = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """A task instance. ``data`` is what judges it (``answer`` by convention); ``text`` is what a person reads."""

    uid: str
    text: str
    token_ids: Ints
    data: Mapping[str, Json] = field(default_factory=dict[str, Json])
    messages: tuple[Message, ...] | None = None
    media: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """``length`` successive policy-written tokens that were sampled by weights ``version``."""

    version: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One attempt at a prompt.

    ``token_ids_T``: prompt and completion, int32. ``mask_T``: 1 where the policy wrote the token, uint8.
    ``logprobs_T``: float32 log-prob of each written token under the distribution it was sampled from, 0 where
    ``mask_T`` is 0 (and everywhere for demonstrations). ``versions``: which weights wrote the masked tokens, in order.
    ``text``: the policy's last completion. ``reward``: None until it has been judged.

    Where a stop string ended it, that is ``info["stop"]``: its tokens are in the row, and ``text`` ends before it. With
    an environment, ``info`` has ``turns``, all that was said after the prompt; ``truncated``, whether a budget ended
    it; and ``environment``, its score. An attempt whose chat template rewrote the past has several parts
    (``key.part``); the last one has the whole conversation.
    """

    key: Key
    token_ids_T: Ints
    mask_T: Masks
    logprobs_T: Floats
    versions: tuple[Span, ...]
    finish: Finish
    text: str = ""
    temperature: float = 1.0
    rewards: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    reward: float | None = None
    info: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def num_written(self) -> int:
        """How many tokens the policy wrote."""
        return int(np.count_nonzero(self.mask_T))

    @property
    def is_baseline(self) -> bool:
        """Whether it was sampled greedily (``info["greedy"]``), to be compared with: nothing is trained on it."""
        return self.info.get("greedy") is True

    @property
    def uncharged(self) -> float | None:
        """The reward before a charge on its length, where there was one (``info["uncharged"]``)."""
        before = self.info.get("uncharged", self.reward)
        assert before is None or isinstance(before, float), before
        return before

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said after the prompt: the policy's completions (``assistant``) and the environment's replies."""
        turns = self.info.get("turns")
        if not isinstance(turns, Sequence) or isinstance(turns, str):
            return (Message(role="assistant", content=self.text),)
        return tuple(Message(**turn) for turn in turns)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]

    def judged(
        self, rewards: Mapping[str, float | None], reward: float, notes: Mapping[str, Json] | None = None
    ) -> "Trajectory":
        """The same trajectory with its rewards, and with ``notes`` added to its info.

        Written out because ``replace`` is several times slower.
        """
        return Trajectory(
            key=self.key,
            token_ids_T=self.token_ids_T,
            mask_T=self.mask_T,
            logprobs_T=self.logprobs_T,
            versions=self.versions,
            finish=self.finish,
            text=self.text,
            temperature=self.temperature,
            rewards=rewards,
            reward=reward,
            info={**self.info, **notes} if notes else self.info,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The sibling trajectories of one draw."""

    draw: int
    prompt: Prompt
    trajectories: tuple[Trajectory, ...]

    @property
    def attempts(self) -> tuple[Trajectory, ...]:
        """One trajectory per attempt: the last part of those that have several. What is judged and counted."""
        if not any(t.key.part for t in self.trajectories):
            return self.trajectories
        last: dict[tuple[int, str], Trajectory] = {}
        for t in self.trajectories:
            held = last.get((t.key.sample, t.key.model))
            if held is None or held.key.part < t.key.part:
                last[t.key.sample, t.key.model] = t
        return tuple(last.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """When a group is judged: in which ``phase``, for which ``step`` (from 0) of ``steps`` (None: not known).

    The step is the one the draw was admitted for, whenever it runs, so a resumed run judges on the same occasions. In
    an evaluation it is the number of steps done. ``seed`` is the run's.
    """

    phase: Literal["train", "warmup", "evaluation"] = "train"
    step: int = 0
    steps: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The groups of one step. Trajectories are in key order; that order is the row order of every Column."""

    groups: tuple[Group, ...]

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """All trajectories [B], by key."""
        return tuple(sorted((t for g in self.groups for t in g.trajectories), key=lambda t: t.key))

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """Their keys [B]."""
        return tuple(t.key for t in self.trajectories)

    @cached_property
    def attempts(self) -> NDArray[np.int64]:
        """The number of the attempt that each row [B] is a part of, from 0 in order of their first rows.

        Parts of an attempt share its reward and its advantage. Mostly every row is an attempt of its own.
        """
        numbers: dict[tuple[int, int, str], int] = {}
        of_row = [numbers.setdefault((k.draw, k.sample, k.model), len(numbers)) for k in self.keys]
        return np.asarray(of_row, np.int64)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Row boundaries [B + 1]: tokens of row b lie at ``offsets[b]:offsets[b + 1]`` of a per-token Column."""
        return np.concatenate([[0], np.cumsum([len(t.token_ids_T) for t in self.trajectories])]).astype(np.int64)

    @cached_property
    def mask(self) -> Masks:
        """The masks of all rows, concatenated [sum T]."""
        if not self.trajectories:
            return np.zeros(0, np.uint8)
        return np.concatenate([t.mask_T for t in self.trajectories])

    @property
    def num_tokens(self) -> int:
        """Tokens in all rows, prompts included."""
        return int(self.offsets[-1])

    @property
    def num_written(self) -> int:
        """Tokens that the policy wrote, in all rows."""
        return int(self.mask.sum())

    def split(self, parts: int) -> "tuple[Batch, ...]":
        """The groups in order, in ``parts`` batches whose sizes differ by one group at most; fewer if groups are."""
        parts = max(min(parts, len(self.groups)), 1)
        ends = [len(self.groups) * i // parts for i in range(parts + 1)]
        return tuple(Batch(groups=self.groups[a:b]) for a, b in pairwise(ends))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """A tensor that belongs to a Batch.

    Per token: ``offsets`` [B + 1] and ``values`` [sum T, ...]. Per trajectory: ``offsets`` None, ``values`` [B, ...].
    ``keys`` [B] are the batch's, in its order. Trailing dimensions are free.
    """

    name: str
    keys: tuple[Key, ...]
    values: Array
    offsets: NDArray[np.int64] | None = None

    @classmethod
    def per_token(cls, name: str, batch: Batch, values: Array) -> "Column":
        """A per-token Column of ``batch`` from values [sum T, ...]."""
        assert len(values) == batch.num_tokens, (name, len(values), batch.num_tokens)
        return cls(name=name, keys=batch.keys, values=values, offsets=batch.offsets)

    @classmethod
    def per_trajectory(cls, name: str, batch: Batch, values: Array) -> "Column":
        """A per-trajectory Column of ``batch`` from values [B, ...]."""
        assert len(values) == len(batch.keys), (name, len(values), len(batch.keys))
        return cls(name=name, keys=batch.keys, values=values)

    def of(self, batch: Batch) -> "Column":
        """The same Column for the rows of ``batch`` only, each of which this one must have."""
        if batch.keys == self.keys:
            return self
        place = {key: row for row, key in enumerate(self.keys)}
        rows = [self.row(place[key]) for key in batch.keys]
        if self.offsets is None:
            values = np.stack(rows) if rows else self.values[:0]
            return Column(name=self.name, keys=batch.keys, values=values)
        values = np.concatenate(rows) if rows else self.values[:0]
        return Column(name=self.name, keys=batch.keys, values=values, offsets=batch.offsets)

    def row(self, index: int) -> Array:
        """Row ``index``: [T, ...] of a per-token Column, [...] of a per-trajectory one."""
        if self.offsets is None:
            return self.values[index]
        return self.values[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number typed at its origin, so that it can be reduced once, anywhere: ``mean`` is ``total / count``."""

    kind: Literal["mean", "sum", "min", "max"]
    total: float
    count: float = 1.0

    @property
    def value(self) -> float:
        """What a reader sees; a mean over nothing is 0."""
        if self.kind == "mean":
            return self.total / self.count if self.count else 0.0
        return self.total

    def __add__(self, other: "Metric") -> "Metric":
        assert self.kind == other.kind, (self, other)
        if self.kind == "min":
            return Metric("min", min(self.total, other.total))
        if self.kind == "max":
            return Metric("max", max(self.total, other.total))
        return Metric(self.kind, self.total + other.total, self.count + other.count)


Metrics: TypeAlias = Mapping[str, Metric]


def merge_metrics(parts: Iterable[Metrics]) -> dict[str, Metric]:
    """The reduction of several metric sets into one, name by name."""
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name] + metric if name in merged else metric
    return merged


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credit:
    """How much better than expected each token did: ``advantages`` per token, ``returns`` per token if values exist."""

    advantages: Column
    returns: Column | None = None
    metrics: Metrics = field(default_factory=dict[str, Metric])


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRef:
    """A loss by name (built in, or ``module:function``) with its settings.

    ``function``: the loss itself, where it exists only in this process; ``use`` is then its name for messages.
    ``unit``: what a micro-batch may not cut: a row, or a group, for a loss that compares the rows of one.
    ``teachers``: the Models whose distributions it asks for beside that of the Model that learns.
    """

    use: str
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    function: Callable[..., object] | None = None
    unit: Literal["row", "group"] = "row"
    teachers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What Model ``model`` would write at every token of a batch: a name only, since [sum T, V] numbers are too many to
    keep. A loss that learns from it names the Model (``LossRef.teachers``), and is given it in pieces."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateReport:
    """What one update did to ``model``. ``skipped`` names the reason if the weights did not change."""

    model: str
    metrics: Metrics
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepReport:
    """What a step reports: the merged metrics of its updates, and the reasons of the skipped ones by Model."""

    metrics: Metrics
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
