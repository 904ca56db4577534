"""What an audit says: findings with their remedies, and the figures they rest on. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = [
    "FULL_MARK",
    "MANY",
    "AnswerRow",
    "AuditReport",
    "DataFigures",
    "Example",
    "Finding",
    "ModelFigures",
    "Quantiles",
    "RewardFigures",
    "Severity",
    "Timing",
    "by_share",
    "share_text",
    "shown",
]

Severity: TypeAlias = Literal["problem", "warning", "note"]
"""``problem``: a run would fail or learn the wrong thing. ``warning``: it would work, and worse than it could.
``note``: good to know."""

FULL_MARK = 1.0
"""From this reward on, an evaluation counts an attempt as right."""

MANY = 0.05
"""A fault in more than this share is a problem, in fewer cases a warning: data of some size always has a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One answer to one prompt and what it got (None: the reward failed, or nothing was judged)."""

    uid: str
    prompt: str
    answer: str
    reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence of what was found, one of what to do; ``keys`` are the keys of the recipe that ``remedy`` names.

    ``code`` says what kind it is, for programs: ``reward.junk``, ``data.leak``, ...
    """

    code: str
    severity: Severity
    message: str
    remedy: str
    keys: tuple[str, ...]
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """How a number spreads."""

    lowest: float
    median: float
    p95: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quantiles":
        """Of one value or more; by the nearest rank, so that each is a value that occurs."""
        ranked = sorted(values)
        last = len(ranked) - 1
        return cls(lowest=ranked[0], median=ranked[last // 2], p95=ranked[-(-last * 95 // 100)], highest=ranked[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFigures:
    """Prompts and answers. Lengths are in tokens; an answer's has its end token (None: no answers are written)."""

    num_train: int
    num_held_out: int
    num_answers: int
    num_duplicates: int
    prompt_tokens: Quantiles
    answer_tokens: Quantiles | None
    max_prompt_tokens: int | None
    max_tokens: int
    context: int | None
    passes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """What one kind of made answer got: how many were scored and failed, mean, lowest, highest and full marks."""

    kind: str
    label: str
    scored: int
    failed: int
    mean: float | None
    lowest: float | None
    highest: float | None
    full: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that the rewards of a group of ``size`` take, and of a step by ``workers`` processes."""

    groups: int
    size: int
    group_s: Quantiles
    step_s: float
    timeout_s: float | None
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFigures:
    """The scores of made answers; ``repeated`` of them were scored three times."""

    name: str
    prompts: int
    asked: int
    rows: tuple[AnswerRow, ...]
    repeated: int
    timing: Timing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Samples of the untrained policy. Shares are in 0..1; ``flat`` are groups whose rewards are all equal.

    ``flat_expected`` and ``useful_groups`` are None where the algorithm does not compare siblings.
    ``turns``: completions of an attempt on average, where there is an environment.
    """

    prompts: int
    samples: int
    temperature: float
    mean_reward: float
    share_right: float
    share_truncated: float
    written_tokens: float
    distinct: float
    flat_observed: float
    flat_expected: float | None
    n: int
    useful_groups: float | None
    groups_per_step: int
    tokens_per_s: float
    sequences: int
    rollout_s: float
    turns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All of an audit. ``left_out`` says what was not looked at, and why."""

    recipe: str
    data: DataFigures
    reward: RewardFigures | None
    model: ModelFigures | None
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...] = field(default_factory=tuple)

    def count(self, severity: Severity) -> int:
        """How many findings there are of one severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return self.count("problem") == 0

    def as_json(self) -> Mapping[str, Any]:
        """For programs: every field, and ``ok``."""
        return {"ok": self.ok, **asdict(self)}


def by_share(count: int, of: int) -> Severity:
    """A problem if it is more than a few of all."""
    return "problem" if count > MANY * of else "warning"


def share_text(count: int, of: int) -> str:
    """``12 of 64 (19%)``."""
    return f"{count:,} of {of:,} ({100 * count / of:.3g}%)" if of else "0 of 0"


def shown(text: str, longest: int = 60) -> str:
    """Text as a Python literal, cut in the middle, so that spaces and line ends are seen."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}...{text[-(longest // 2 - 3) :]}"
    return repr(text)
