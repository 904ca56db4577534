"""Where two runs part by their records alone: the first step, evaluation or group that is not the same to the bit.

In the order in which things came to be: an evaluation before its step, what was drawn and sampled, how it was judged
and filtered, then the numbers of the step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stretto.runtime.edges import Leaf, first_place, leaf_hash, leaves_of, row_name
from stretto.runtime.replay import Past
from stretto.store import PHASES, EvalBody, RecordedGroup

__all__ = ["RecordedParting", "Shared", "recorded_parting", "shared_steps"]

Kind: TypeAlias = Literal["drawn", "sampled", "judged", "number", "evaluation"]
"""What differs: which draws or prompts, what was sampled, rewards or filters, the numbers of a step, an evaluation."""

JUDGED = ("reward", "rewards")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedParting:
    """The first thing that differs: in ``phase``, at ``step`` (of an evaluation: after so many steps)."""

    kind: Kind
    phase: str
    step: int
    name: str
    index: str
    a: str
    b: str


@dataclass(slots=True)
class Shared:
    """How much two records have in common and is the same."""

    steps: int = 0
    groups: int = 0
    numbers: int = 0


def shared_steps(a: Past, b: Past, phase: str) -> range:
    """The steps of a phase that both runs trained."""
    one, other = a.steps(phase), b.steps(phase)
    return range(max(one.start, other.start), min(one.stop, other.stop)) if one and other else range(0)


def recorded_parting(a: Past, b: Past) -> tuple[RecordedParting | None, Shared]:
    """Where the records part first, None if nowhere; and what they share before."""
    shared = Shared()
    for phase in PHASES:
        steps = shared_steps(a, b, phase)
        evaluations = _evaluations(a, phase), _evaluations(b, phase)
        for step in (*steps, *([steps.stop] if steps else [])):
            found = _evaluation(phase, step, evaluations, shared)
            if found is None and step != steps.stop:
                found = _step(phase, step, a, b, shared)
            if found is not None:
                return found, shared
    return None, shared


def _step(phase: str, step: int, a: Past, b: Past, shared: Shared) -> RecordedParting | None:
    groups = a.groups(phase, step), b.groups(phase, step)
    for kind, compare in (("drawn", _drawn), ("sampled", _sampled), ("judged", _judged)):
        found = compare(*groups)
        if found is not None:
            name, index, one, other = found
            return RecordedParting(
                kind=kind,  # pyright: ignore[reportArgumentType]
                phase=phase,
                step=step,
                name=name,
                index=index,
                a=one,
                b=other,
            )
    shared.groups += len(groups[0])
    found = _numbers(a.metrics(phase, step) or {}, b.metrics(phase, step) or {}, shared)
    if found is not None:
        return RecordedParting(kind="number", phase=phase, step=step, name=found[0], index="", a=found[1], b=found[2])
    shared.steps += 1
    return None


def _numbers(a: Mapping[str, float], b: Mapping[str, float], shared: Shared) -> tuple[str, str, str] | None:
    """The first of the numbers that both have and that differs."""
    for name in a:
        if name in b and repr(a[name]) != repr(b[name]):
            return name, repr(a[name]), repr(b[name])
        shared.numbers += name in b
    return None


Found: TypeAlias = "tuple[str, str, str, str] | None"
"""(name, index, a, b)."""


def _drawn(a: Sequence[RecordedGroup], b: Sequence[RecordedGroup]) -> Found:
    """Other draws, or other prompts."""
    draws = [[r.group.draw for r in side] for side in (a, b)]
    for one, other in zip(a, b, strict=False):
        if one.group.draw != other.group.draw:
            break
        prompts = [(r.group.prompt.uid, r.group.prompt.token_ids.tobytes()) for r in (one, other)]
        if prompts[0] != prompts[1]:
            return f"draw {one.group.draw}.prompt", "", repr(one.group.prompt.uid), repr(other.group.prompt.uid)
    if draws[0] != draws[1]:
        return "draws of the step", "", str(draws[0]), str(draws[1])
    return None


def _sampled(a: Sequence[RecordedGroup], b: Sequence[RecordedGroup]) -> Found:
    """Other tokens, or log-probs, or versions."""
    return _first(_rows(a, judged=False), _rows(b, judged=False))


def _judged(a: Sequence[RecordedGroup], b: Sequence[RecordedGroup]) -> Found:
    """Other rewards, or kept from training by one and not the other."""
    found = _first(_rows(a, judged=True), _rows(b, judged=True))
    if found is not None:
        return found
    for one, other in zip(a, b, strict=True):
        if bool(one.why) != bool(other.why):
            return f"draw {one.group.draw}.filtered", "", repr(one.why), repr(other.why)
    return None


def _rows(groups: Sequence[RecordedGroup], *, judged: bool) -> Iterator[tuple[str, Leaf]]:
    """What was sampled, or what judged it, by names."""
    for row in (row for recorded in groups for row in recorded.group.trajectories):
        for name, leaf in leaves_of(row):
            if (name.partition(".")[0] in JUDGED) == judged:
                yield f"{row_name(row.key)}.{name}", leaf


def _first(a: Iterator[tuple[str, Leaf]], b: Iterator[tuple[str, Leaf]]) -> Found:
    """The first leaf that differs. A reward of another name is no difference: the total counts."""
    one, other = dict(a), dict(b)
    for name in {**one, **other}:
        if name not in one or name not in other:
            if ".rewards." in name:
                continue
            return name, "", "there" if name in one else "absent", "there" if name in other else "absent"
        if leaf_hash(one[name]) != leaf_hash(other[name]):
            return name, *first_place(one[name], other[name])
    return None


def _evaluations(past: Past, phase: str) -> dict[int, dict[str, float]]:
    """The numbers of every evaluation, by how many steps were done."""
    found: dict[int, dict[str, float]] = {}
    for e in past.view.events:
        if isinstance(e.body, EvalBody) and e.phase == phase and e.step is not None:
            found.setdefault(e.step, {}).update({f"{e.body.name}/accuracy": e.body.accuracy, **e.body.metrics})
    return found


def _evaluation(
    phase: str, step: int, evaluations: tuple[dict[int, dict[str, float]], dict[int, dict[str, float]]], shared: Shared
) -> RecordedParting | None:
    found = _numbers(evaluations[0].get(step, {}), evaluations[1].get(step, {}), shared)
    if found is None:
        return None
    return RecordedParting(kind="evaluation", phase=phase, step=step, name=found[0], index="", a=found[1], b=found[2])
