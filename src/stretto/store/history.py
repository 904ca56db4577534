"""Which records of a run count. An attempt that resumed from a checkpoint supersedes what was recorded after it.

A checkpoint knows the newest ``seq`` when it was taken, and the attempt that resumes from it writes that down. A record
of an earlier attempt counts if it is not newer; or if it belongs to the checkpoint's own window (the evaluation,
publication or end of phase beside it), which the resumed attempt need not repeat. What it does repeat replaces the
earlier record. Records about the process (attempts, what they read, errors, settings, ends) always count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from stretto.store.events import (
    AttemptBody,
    EvalBody,
    Event,
    EventKind,
    GroupBody,
    NodeBody,
    PhaseBody,
    ResumedFrom,
)
from stretto.store.rollouts import RecordedGroup

__all__ = ["History", "effective_events", "effective_groups", "placed"]

_ALWAYS: frozenset[EventKind] = frozenset({"run", "attempt", "prompts", "setting", "error", "end"})
_WINDOW: frozenset[EventKind] = frozenset({"phase", "eval", "publish", "checkpoint"})

_Identity: TypeAlias = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """From where each attempt started: (attempt, checkpoint or None for the start), in order."""

    starts: tuple[tuple[int, ResumedFrom | None], ...]

    @classmethod
    def of(cls, events: Iterable[Event]) -> "History":
        """The history that the ``attempt`` events tell."""
        found = [(e.body.attempt, e.body.resumed_from) for e in events if isinstance(e.body, AttemptBody)]
        return cls(starts=tuple(sorted(found, key=lambda start: start[0])))

    def counts(self, attempt: int, seq: int, window: tuple[str | None, int | None] | None = None) -> bool:
        """Whether a record of ``attempt`` still counts. ``window``: its (phase, step), if its kind is a window's."""
        return all(
            later <= attempt
            or (source is not None and (seq <= source.seq or window == (source.phase, source.steps_done)))
            for later, source in self.starts
        )


def effective_events(events: Sequence[Event]) -> list[Event]:
    """The events that count, in order of ``seq``."""
    history = History.of(events)
    kept: list[Event] = []
    newest: dict[_Identity, int] = {}
    for event in events:
        window = (event.phase, event.step) if event.kind in _WINDOW else None
        if event.kind in _ALWAYS or history.counts(event.attempt, event.seq, window):
            kept.append(event)
            if event.kind not in _ALWAYS:
                newest[_identity(event)] = event.attempt
    return [event for event in kept if event.kind in _ALWAYS or newest[_identity(event)] == event.attempt]


def _identity(event: Event) -> _Identity:
    """What two attempts have in common when they record the same thing twice."""
    body = event.body
    match body:
        case GroupBody():
            return ("group", event.phase, body.draw)
        case NodeBody():
            return ("node", event.phase, event.step, body.id, body.draw)
        case PhaseBody():
            return ("phase", event.phase, body.state)
        case EvalBody():
            return ("eval", event.phase, event.step, body.name)
        case _:
            return (body.kind, event.phase, event.step)


def placed(events: Iterable[Event], phase: str, groups: Iterable[RecordedGroup]) -> Iterator[RecordedGroup]:
    """The groups of a phase; what a worker wrote has ``seq``, step and why from its event. What
    no event speaks of is left out: its worker died before it could say so."""
    found: dict[tuple[int, int, str], Event] = {}
    for event in events:
        if isinstance(event.body, GroupBody) and event.phase == phase and event.body.by:
            found[event.attempt, event.body.draw, event.body.by] = event
    for group in groups:
        if group.seq is not None:
            yield group
            continue
        event = found.get((group.attempt, group.group.draw, group.by))
        if event is not None and isinstance(event.body, GroupBody):
            yield replace(group, seq=event.seq, step=event.step, why=event.body.why)


def effective_groups(history: History, groups: Iterable[RecordedGroup]) -> list[RecordedGroup]:
    """The finished groups that count, by draw. Of a draw that two attempts finished, the newer."""
    kept: dict[int, RecordedGroup] = {}
    for recorded in groups:
        draw = recorded.group.draw
        older = kept.get(draw)
        assert recorded.seq is not None, "placed() gives what workers wrote its seq"
        if history.counts(recorded.attempt, recorded.seq) and (older is None or older.attempt <= recorded.attempt):
            kept[draw] = recorded
    return [kept[draw] for draw in sorted(kept)]
