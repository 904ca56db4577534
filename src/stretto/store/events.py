"""The event schema, version 1: what a run writes down, and what every reader may rely on (docs/events.md).

Owns the typed bodies and their one-line JSON form. Not the file they go to (``lines``), nor which of them count after
a resume (``history``).
"""

import json
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias, cast

from stretto.errors import StoreError, StrettoError
from stretto.store.durable import encode_json
from stretto.types import Json

__all__ = [
    "EVALUATION",
    "OF_THE_MACHINE",
    "SCHEMA",
    "AttemptBody",
    "Body",
    "CheckpointBody",
    "EndBody",
    "EndStatus",
    "ErrorBody",
    "EvalBody",
    "Event",
    "EventKind",
    "Example",
    "GroupBody",
    "NodeBody",
    "NodeState",
    "NodeTime",
    "PhaseBody",
    "PromptsBody",
    "PublishBody",
    "ResumedFrom",
    "RunBody",
    "SettingBody",
    "StepBody",
    "decode_event",
    "encode_event",
]

SCHEMA = 1
"""Raised with any change to the keys below. A reader refuses what is newer than itself."""

OF_THE_MACHINE = ("time/", "memory/")
"""How metrics begin that tell of the machine, not of what was computed: two runs of the same bits differ in them."""

EventKind = Literal[
    "run",
    "attempt",
    "prompts",
    "phase",
    "node",
    "group",
    "step",
    "eval",
    "publish",
    "checkpoint",
    "setting",
    "error",
    "end",
]
NodeState = Literal["done", "failed", "cancelled"]
EndStatus = Literal["done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBody:
    """The run begins. ``steps`` of the main phase; None if epochs decide."""

    kind: ClassVar[EventKind] = "run"
    name: str
    seed: int
    steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrom:
    """The checkpoint an attempt starts from. Records after ``seq`` were made after it was taken."""

    phase: str
    steps_done: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBody:
    """A process takes the run up, from a checkpoint or (None) from the start."""

    kind: ClassVar[EventKind] = "attempt"
    attempt: int
    pid: int
    host: str
    resumed_from: ResumedFrom | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsBody:
    """What an attempt read of its prompts, before its phases begin.

    ``read`` rows of ``source``, of which ``skipped`` were too long (``prompts.too_long``) or came before
    (``prompts.unique``); ``truncated`` of the others were cut. ``train`` and ``held_out`` of them are used; ``notes``
    are sentences about the data.
    """

    kind: ClassVar[EventKind] = "prompts"
    source: str
    read: int
    skipped: int
    truncated: int
    train: int
    held_out: int
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The same in words."""
        counts = f"{self.read:,} read, {self.skipped:,} skipped, {self.truncated:,} truncated"
        used = f"{self.train:,} to train on, {self.held_out:,} held out"
        return (f"prompts of {self.source}: {counts}; {used}", *self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBody:
    """A phase starts or ends. ``steps`` planned at its start, done at its end; ``reason`` why it ended."""

    kind: ClassVar[EventKind] = "phase"
    state: Literal["start", "end"]
    workflow: str
    steps: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBody:
    """One execution of a node. Per-group nodes that went well ride in their ``group`` event instead."""

    kind: ClassVar[EventKind] = "node"
    id: str
    world: Literal["group", "step"]
    state: NodeState
    start_s: float
    duration_s: float
    draw: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """When a per-group node ran for one group."""

    id: str
    start_s: float
    duration_s: float
    state: NodeState = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBody:
    """A group is finished, or was made and ``filtered`` from training, or is dropped without one, and ``why``.

    ``n`` trajectories; ``reward_mean`` None if none is judged. ``by``: the worker whose rollout file holds it, if it is
    not the run's own.
    """

    kind: ClassVar[EventKind] = "group"
    draw: int
    uid: str
    n: int
    state: Literal["finished", "filtered", "dropped"] = "finished"
    why: str = ""
    reward_mean: float | None = None
    nodes: tuple[NodeTime, ...] = ()
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBody:
    """A step is done. Only ``time/*`` metrics may differ between bit-identical runs.

    ``cpu_s``: CPU seconds of the attempt so far; what counts if the attempt is killed before its ``end``.
    """

    kind: ClassVar[EventKind] = "step"
    metrics: Mapping[str, float]
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One evaluated prompt and what the policy wrote."""

    uid: str
    prompt: str
    completion: str
    answer: Json
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalBody:
    """An evaluation by the name of its prompts (``held_out``)."""

    kind: ClassVar[EventKind] = "eval"
    name: str
    accuracy: float
    n: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    examples: tuple[Example, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishBody:
    """Weights went from trainer to engines."""

    kind: ClassVar[EventKind] = "publish"
    version: int
    duration_s: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBody:
    """A checkpoint is whole on disk. ``path`` is relative to the run; ``metrics`` those of its manifest."""

    kind: ClassVar[EventKind] = "checkpoint"
    path: str
    bytes: int
    duration_s: float
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingBody:
    """A resume changed a key of the configuration."""

    kind: ClassVar[EventKind] = "setting"
    key: str
    old: Json
    new: Json


EVALUATION = "evaluation"
"""How ``ErrorBody.where`` begins if it was an evaluation: the run went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """Something raised. ``where`` names the node, step or part."""

    kind: ClassVar[EventKind] = "error"
    type: str
    message: str
    where: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, failure: BaseException, where: str) -> "ErrorBody":
        """What was raised; with its traceback, unless it is one of ours that says all there is to say."""
        plain = isinstance(failure, StrettoError) and failure.__cause__ is None
        trace = "" if plain else "".join(traceback.format_exception(failure))
        return cls(type=type(failure).__name__, message=str(failure), where=where, traceback=trace)

    @property
    def is_evaluation(self) -> bool:
        """Whether it was an evaluation that failed."""
        return self.where.startswith(EVALUATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBody:
    """The attempt is over; its wall and CPU seconds."""

    kind: ClassVar[EventKind] = "end"
    status: EndStatus
    wall_s: float
    cpu_s: float
    reason: str = ""


Body: TypeAlias = (
    RunBody
    | AttemptBody
    | PromptsBody
    | PhaseBody
    | NodeBody
    | GroupBody
    | StepBody
    | EvalBody
    | PublishBody
    | CheckpointBody
    | SettingBody
    | ErrorBody
    | EndBody
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record. ``time_s`` is Unix time; ``seq`` counts from 0 over all attempts

    ``step``: how many steps of ``phase`` were done before what the event speaks of. So the first step is step 0, and
    the evaluation, publication and checkpoint that follow it are at step 1.
    """

    seq: int
    time_s: float
    attempt: int
    body: Body
    phase: str | None = None
    step: int | None = None
    version: int | None = None
    schema: int = SCHEMA

    @property
    def kind(self) -> EventKind:
        """The kind, which the type of the body decides."""
        return self.body.kind


def encode_event(event: Event) -> str:
    """One line of JSON, without newline. Numbers that are not finite become the strings NaN, Infinity, -Infinity."""
    record = {
        "schema": event.schema,
        "seq": event.seq,
        "time_s": event.time_s,
        "attempt": event.attempt,
        "phase": event.phase,
        "step": event.step,
        "version": event.version,
        "kind": event.body.kind,
        "body": event.body,
    }
    try:
        return encode_json(record)
    except ValueError:
        return encode_json({**record, "body": _quoted(event.body)})


def _quoted(body: Body) -> dict[str, object]:
    """The body with numbers that JSON cannot hold as strings; ``float`` reads them back."""

    def quote(value: object) -> object:
        if isinstance(value, float) and not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        if isinstance(value, Mapping):
            return {key: quote(item) for key, item in cast(Mapping[str, object], value).items()}
        return value

    return {f.name: quote(getattr(body, f.name)) for f in fields(body)}


def decode_event(line: str | bytes) -> Event:
    """The event in a line. Raises StoreError (without file and line, which the caller knows) if it is not one."""
    try:
        raw: dict[str, Any] = json.loads(line)
        schema = raw["schema"]
        if schema > SCHEMA:
            raise StoreError(
                f"event schema {schema} is newer than {SCHEMA}, which this version reads. Upgrade stretto."
            )
        body = _BODIES[raw.pop("kind")](raw.pop("body"))
        return Event(body=body, **raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"not an event of schema {SCHEMA}: {type(error).__name__}: {error}.") from error


def _numbers(raw: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) if isinstance(value, str) else value for name, value in raw.items()}


def _attempt(raw: dict[str, Any]) -> AttemptBody:
    source = raw.pop("resumed_from")
    return AttemptBody(resumed_from=None if source is None else ResumedFrom(**source), **raw)


def _group(raw: dict[str, Any]) -> GroupBody:
    nodes = tuple(NodeTime(**node) for node in raw.pop("nodes"))
    mean = raw.pop("reward_mean")
    return GroupBody(nodes=nodes, reward_mean=float(mean) if isinstance(mean, str) else mean, **raw)


def _step(raw: dict[str, Any]) -> StepBody:
    return StepBody(metrics=_numbers(raw.pop("metrics")), **raw)


def _eval(raw: dict[str, Any]) -> EvalBody:
    examples = tuple(Example(**example) for example in raw.pop("examples"))
    accuracy = float(raw.pop("accuracy"))
    return EvalBody(examples=examples, accuracy=accuracy, metrics=_numbers(raw.pop("metrics")), **raw)


def _checkpoint(raw: dict[str, Any]) -> CheckpointBody:
    return CheckpointBody(metrics=_numbers(raw.pop("metrics")), **raw)


_BODIES: Mapping[str, Callable[[dict[str, Any]], Body]] = {
    "run": lambda raw: RunBody(**raw),
    "attempt": _attempt,
    "prompts": lambda raw: PromptsBody(notes=tuple(raw.pop("notes")), **raw),
    "phase": lambda raw: PhaseBody(**raw),
    "node": lambda raw: NodeBody(**raw),
    "group": _group,
    "step": _step,
    "eval": _eval,
    "publish": lambda raw: PublishBody(**raw),
    "checkpoint": _checkpoint,
    "setting": lambda raw: SettingBody(**raw),
    "error": lambda raw: ErrorBody(**raw),
    "end": lambda raw: EndBody(**raw),
}
