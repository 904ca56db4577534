"""What the driver knows of a draw: its numbers, and where its groups lie. Tokens stay with whoever made them.

``Facts`` are taken where a group is made: all that schedules, records and metrics ask of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from stretto.roles import DataPlane, Ref
from stretto.runtime.drops import scores_of
from stretto.types import Group, Metric, Metrics, Span, Trajectory

__all__ = ["Drawn", "Facts", "facts_of", "reward_metrics"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """Of one group: its trajectories, what judged attempts got (by the name of the reward, the total as ""), the mean
    of their rewards, tokens by the version that wrote them, whether a greedy attempt is among them, and its part of the
    step's metrics."""

    n: int
    scores: Mapping[str, tuple[float, ...]]
    reward_mean: float | None
    versions: tuple[Span, ...]
    greedy: bool
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """What one draw gave, by the per-group nodes that the boundary reads (mostly one): facts of each Group, and where
    it lies."""

    draw: int
    uid: str
    facts: Mapping[str, Facts]
    refs: Mapping[str, Ref]

    @classmethod
    def of(cls, draw: int, groups: Mapping[str, Group], plane: DataPlane) -> "Drawn":
        """Of these groups, which are put into ``plane``."""
        return cls(
            draw=draw,
            uid=next(iter(groups.values())).prompt.uid,
            facts={node: facts_of(group) for node, group in groups.items()},
            refs={node: plane.put((group,)) for node, group in groups.items()},
        )

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights that wrote a token of it; None if no policy did."""
        return min((span.version for facts in self.facts.values() for span in facts.versions), default=None)

    @property
    def scores(self) -> Mapping[str, tuple[float, ...]]:
        """What its judged attempts got, by the name of the reward, the total as ""."""
        merged: dict[str, tuple[float, ...]] = {}
        for facts in self.facts.values():
            for name, values in facts.scores.items():
                merged[name] = (*merged.get(name, ()), *values)
        return merged


def facts_of(group: Group) -> Facts:
    """What a driver is told of a group."""
    rewards = [t.reward for t in group.attempts if t.reward is not None and not t.is_baseline]
    written: dict[int, int] = {}
    for span in (span for t in group.trajectories for span in t.versions):
        written[span.version] = written.get(span.version, 0) + span.length
    return Facts(
        n=len(group.trajectories),
        scores=scores_of((group,)),
        reward_mean=sum(rewards) / len(rewards) if rewards else None,
        versions=tuple(Span(version, length) for version, length in sorted(written.items())),
        greedy=any(t.is_baseline for t in group.trajectories),
        metrics=_group_metrics(group),
    )


def _group_metrics(group: Group) -> dict[str, Metric]:
    """Counts, lengths, rewards; these two without greedy attempts, which are none of what is trained on."""
    rows = group.trajectories
    attempts = [t for t in group.attempts if not t.is_baseline]
    written = sum(t.num_written for t in rows)
    beside = sum(t.num_written for t in rows if t.is_baseline)
    metrics = {
        "batch/trajectories": Metric("sum", len(rows)),
        "batch/tokens": Metric("sum", sum(len(t.token_ids_T) for t in rows)),
        "batch/written_tokens": Metric("sum", written),
        "batch/length": Metric("mean", written - beside, len(attempts)),
        "batch/truncated": Metric("mean", sum(t.finish == "length" for t in attempts), len(attempts)),
    }
    played = [t for t in attempts if "turns" in t.info]
    if played:
        turns = sum(m.role == "assistant" for t in played for m in t.messages)
        metrics["batch/turns"] = Metric("mean", turns, len(played))
    rewards = [t.reward for t in attempts if t.reward is not None]
    if rewards:
        metrics["reward/mean"] = Metric("mean", math.fsum(rewards), len(rewards))
        metrics["reward/min"] = Metric("min", min(rewards))
        metrics["reward/max"] = Metric("max", max(rewards))
    return {**metrics, **reward_metrics(attempts)}


def reward_metrics(rows: Sequence[Trajectory]) -> dict[str, Metric]:
    """The means of every score by its name (``reward/NAME``, unweighted, where it applies) and of what was logged."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, score in row.rewards.items():
            if score is not None:
                values.setdefault(f"reward/{name}", []).append(score)
        for name, numbers in cast("Mapping[str, list[float]]", row.info.get("logged", {})).items():
            values.setdefault(f"logged/{name}", []).extend(numbers)
    return {name: Metric("mean", math.fsum(found), len(found)) for name, found in values.items()}
