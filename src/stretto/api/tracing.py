"""A run's record as a timeline for Perfetto or chrome://tracing: what ran when, on one clock. Changes no run.

Three tracks an attempt: *rollout* with every per-group node, a span for each draw and below it when the node had none
(the engine's idle time, for the node that asks it); *learner* with every per-step node and the time between them; and
*driver* with steps, publications and checkpoints, and evaluations where they ended. Format: the Trace Event Format of
Chrome, JSON object form; times in microseconds since the run began.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import ConfigError
from stretto.store import CheckpointBody, EvalBody, Event, GroupBody, NodeBody, PublishBody, RunView, StepBody
from stretto.types import Json

__all__ = ["export_trace", "trace_events"]

_TRACKS = ("rollout", "learner", "driver")
_IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Something that took from ``start_s`` to ``end_s`` (Unix time) in a lane of a track."""

    track: str
    lane: str
    name: str
    start_s: float
    end_s: float
    draw: int | None = None
    args: tuple[tuple[str, Json], ...] = ()


def export_trace(view: RunView, path: Path) -> int:
    """Write the timeline of a run to ``path`` and tell how many spans it has. ConfigError if nothing has run yet, or
    the file cannot be written."""
    events = list(trace_events(view))
    spans = sum(event["ph"] in ("X", "b") for event in events)
    if not spans:
        raise ConfigError(
            f"{view.name} has no step or group yet, so there is nothing to draw. Wait for its first step."
        )
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False, separators=(",", ":"))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The trace cannot be written to {path}: {error.strerror}. Name another file with -o."
        ) from error
    return spans


def trace_events(view: RunView) -> Iterator[dict[str, Json]]:
    """The events of the timeline, attempt by attempt; those that a resume replaced are left out."""
    if not view.events:
        return
    zero_s = view.events[0].time_s
    for attempt in sorted({event.attempt for event in view.events}):
        own = [event for event in view.events if event.attempt == attempt]
        spans = [span for event in own for span in _spans(event)] + list(_steps(own))
        spans += [idle for lane in _lanes(spans) if lane[0].track != "driver" for idle in _gaps(lane)]
        numbers = {name: 10 * attempt + i for i, name in enumerate(_TRACKS)}
        lanes = {key: i for i, key in enumerate(dict.fromkeys((s.track, s.lane) for s in spans))}
        for track, number in numbers.items():
            yield _named("process_name", f"attempt {attempt}: {track}", number)
        for (track, lane), number in lanes.items():
            yield _named("thread_name", lane, numbers[track], number)
        for span in spans:
            yield from _drawn(span, numbers[span.track], lanes[span.track, span.lane], zero_s)
        for event in own:
            if isinstance(event.body, EvalBody):
                yield {
                    "ph": "i",
                    "s": "p",
                    "name": f"evaluated {event.body.name}",
                    "pid": numbers["driver"],
                    "tid": 0,
                    "ts": _us(event.time_s - zero_s),
                    "args": {"accuracy": event.body.accuracy, "n": event.body.n},
                }


def _spans(event: Event) -> Iterator[_Span]:
    """What an event tells of time that was spent."""
    args: tuple[tuple[str, Json], ...] = (("phase", event.phase), ("step", event.step))
    end_s = event.time_s
    match event.body:
        case GroupBody(draw=draw, nodes=nodes):
            for n in nodes:
                done_s = n.start_s + n.duration_s
                yield _Span(
                    track="rollout",
                    lane=n.id,
                    name=n.id,
                    start_s=n.start_s,
                    end_s=done_s,
                    draw=draw,
                    args=(*args, ("draw", draw), ("state", n.state)),
                )
        case NodeBody(id=name, world="step", start_s=start_s, duration_s=duration_s):
            yield _Span(
                track="learner", lane="nodes", name=name, start_s=start_s, end_s=start_s + duration_s, args=args
            )
        case PublishBody(version=version, duration_s=duration_s, bytes=size):
            told = (*args, ("version", version), ("bytes", size))
            yield _Span(
                track="driver", lane="window", name="publish", start_s=end_s - duration_s, end_s=end_s, args=told
            )
        case CheckpointBody(duration_s=duration_s, path=path):
            told = (*args, ("path", path))
            yield _Span(track="driver", lane="window", name="save", start_s=end_s - duration_s, end_s=end_s, args=told)
        case _:
            return


def _steps(events: Sequence[Event]) -> Iterator[_Span]:
    """Every step, from the end of the one before, or from the beginning of its phase, to its own."""
    since_s = events[0].time_s
    for event in events:
        if event.kind == "phase":
            since_s = event.time_s
        if isinstance(event.body, StepBody):
            waits: dict[str, Json] = {k: v for k, v in event.body.metrics.items() if k.startswith("time/")}
            yield _Span(
                track="driver",
                lane="steps",
                name=f"{event.phase} step {event.step}",
                start_s=since_s,
                end_s=event.time_s,
                args=tuple(waits.items()),
            )
            since_s = event.time_s


def _lanes(spans: Iterable[_Span]) -> Iterator[list[_Span]]:
    lanes: dict[tuple[str, str], list[_Span]] = {}
    for span in spans:
        lanes.setdefault((span.track, span.lane), []).append(span)
    yield from lanes.values()


def _gaps(lane: Sequence[_Span]) -> Iterator[_Span]:
    """Where none of a lane's spans is."""
    ordered = sorted(lane, key=lambda span: span.start_s)
    busy_s = ordered[0].end_s
    for span in ordered[1:]:
        if span.start_s > busy_s:
            name = f"{span.lane}: {_IDLE}" if span.track == "rollout" else _IDLE
            lane_name = name if span.track == "rollout" else span.lane
            yield _Span(track=span.track, lane=lane_name, name=_IDLE, start_s=busy_s, end_s=span.start_s)
        busy_s = max(busy_s, span.end_s)


def _drawn(span: _Span, process: int, thread: int, zero_s: float) -> Iterator[dict[str, Json]]:
    """As one complete event; spans of draws, which overlap, as a pair of asynchronous ones."""
    place: dict[str, Json] = {"name": span.name, "cat": span.track, "pid": process, "tid": thread}
    start, end = _us(span.start_s - zero_s), _us(span.end_s - zero_s)
    args: dict[str, Json] = dict(span.args)
    if span.draw is None:
        yield {**place, "ph": "X", "ts": start, "dur": max(0.0, end - start), "args": args}
    else:
        number = f"{span.lane}-{span.draw}"
        yield {**place, "ph": "b", "id": number, "ts": start, "args": args}
        yield {**place, "ph": "e", "id": number, "ts": end}


def _named(what: str, name: str, process: int, thread: int = 0) -> dict[str, Json]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
