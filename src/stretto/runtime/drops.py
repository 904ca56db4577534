"""Draws that gave no group to train on: why, how many for which reason, and what their rewards look like in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from stretto.config.base import is_name
from stretto.config.filters import FilterKind
from stretto.types import Group, Metric

__all__ = ["DropKind", "Dropped", "drop_metrics", "scores_of", "told_drops", "told_rewards"]

DropKind: TypeAlias = FilterKind | Literal["failed", "left"]
"""What dropped a draw: a filter by its key, a failure that a policy (``on_error: drop``) let pass, or that a step had
enough without it (``schedule.over_sample``)."""

BINS = 5
"""Of the histogram of mean rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Why a draw gives nothing to train on.

    ``scores``: what its judged attempts got, by the name of the reward, the total as ""; empty where it failed before.
    ``score``: the name of the one that the filter looked at.
    """

    kind: DropKind
    why: str
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    score: str = ""

    @property
    def rewards(self) -> tuple[float, ...]:
        """What the filter looked at."""
        return self.scores.get(self.score, ())

    def to_json(self) -> dict[str, Any]:
        """As JSON, to the bit."""
        scores = {name: list(values) for name, values in self.scores.items()}
        return {"kind": self.kind, "why": self.why, "scores": scores, "score": self.score}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Dropped":
        """What ``to_json`` gave."""
        scores = {name: tuple(values) for name, values in raw["scores"].items()}
        return cls(kind=raw["kind"], why=raw["why"], scores=scores, score=raw["score"])


def scores_of(groups: Iterable[Group]) -> dict[str, tuple[float, ...]]:
    """What the judged attempts of a draw got, by the name of the reward where it applies, the total as "".

    The total is that before a charge on long attempts, and greedy attempts that others are compared with are left out.
    """
    scores: dict[str, list[float]] = {}
    for t in (t for group in groups for t in group.attempts if not t.is_baseline):
        for name, value in {**t.rewards, "": t.uncharged}.items():
            if value is not None:
                scores.setdefault(name, []).append(value)
    return {name: tuple(values) for name, values in scores.items()}


def drop_metrics(dropped: Iterable[Dropped], kinds: Sequence[FilterKind]) -> dict[str, Metric]:
    """How many draws each of the active filters dropped, 0 too; for a function also by the names that it gave."""
    counts = Counter(f"filter/{d.kind}" for d in dropped if d.kind not in ("failed", "left"))
    named = Counter(f"filter/use/{d.why}" for d in dropped if d.kind == "use" and is_name(d.why))
    every = {f"filter/{kind}": counts[f"filter/{kind}"] for kind in kinds} | dict(named)
    return {name: Metric("sum", count) for name, count in every.items()}


def told_drops(dropped: Sequence[Dropped]) -> str:
    """What dropped them, with counts, and the first few reasons that no count tells."""
    counts = Counter(d.kind for d in dropped)
    text = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
    reasons = sorted({d.why for d in dropped if d.kind in ("failed", "use")})
    return text + (f"; reasons: {'; '.join(reasons[:5])}" if reasons else "")


def told_rewards(groups: Sequence[Sequence[float]]) -> str:
    """How the rewards of groups are spread: groups of one value by that value, the others, a histogram of the means.

    Empty where none has a reward.
    """
    judged = [group for group in groups if group]
    if not judged:
        return ""
    same = Counter(group[0] for group in judged if min(group) == max(group))
    parts = [f"all attempts {_number(value)} in {_share(count, len(judged))}" for value, count in same.most_common(3)]
    more = sum(same.values()) - sum(count for _, count in same.most_common(3))
    mixed = len(judged) - sum(same.values())
    parts += [f"all attempts another value in {_share(more, len(judged))}"] if more else []
    parts += [f"rewards that differ in {_share(mixed, len(judged))}"] if mixed else []
    return f"{', '.join(parts)}; means of groups: {_histogram([sum(group) / len(group) for group in judged])}"


def _histogram(means: Sequence[float]) -> str:
    """Counts in equal bins from the smallest to the largest."""
    low, high = min(means), max(means)
    width = (high - low) / BINS
    if not width:
        return f"all {_number(low)}"
    counts = Counter(min(BINS - 1, int((mean - low) / width)) for mean in means)
    edges = [low + width * i for i in range(BINS)] + [high]
    return ", ".join(f"{_number(edges[i])} to {_number(edges[i + 1])}: {counts[i]}" for i in range(BINS))


def _share(count: int, of: int) -> str:
    return f"{count} of {of} groups ({count / of:.0%})"


def _number(value: float) -> str:
    return f"{value:.4g}"
