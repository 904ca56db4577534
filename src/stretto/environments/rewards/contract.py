"""What a reward is, whatever its signature: functions bound under names, with weights, and what judging gives.

Owns the values only: recognising a signature (``forms.py``), calling (``calling.py``), reading what was returned
(``reading.py``) and finding a reward by name (``resolve.py``) are elsewhere. A reward process loads this, and no
configuration.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from stretto.errors import DataError
from stretto.types import Json, Prompt

__all__ = [
    "Answer",
    "Checked",
    "Form",
    "Notes",
    "Part",
    "Reward",
    "Rewards",
    "Scores",
    "Signature",
    "Warmed",
    "reward_name",
]

Reward: TypeAlias = Callable[..., object]
"""A reward in one of the accepted forms. Typed loosely, because its signature is checked when it is bound and what it
returns when it is read."""

Scores: TypeAlias = Mapping[str, float | None]
"""The scores of one trajectory by name, unweighted; at least one is a number, and the reward they make is finite."""

Notes: TypeAlias = Mapping[str, Json]
"""What judging adds to a trajectory's ``info``: ``logged`` (by name, every number logged) and ``extra``."""

Form = Literal["trajectory", "group", "trl", "verl"]
"""How a reward is called: on one trajectory, on the siblings, or as TRL or verl call theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a reward takes. ``names`` are passed by name, unless ``plain``: then ``(prompt, trajectory)`` as they are.

    ``required``: the columns of ``prompt.data`` without which it cannot be called. ``rest``: whether it takes
    everything else too (``**kwargs``).
    """

    form: Form
    names: frozenset[str]
    required: frozenset[str] = frozenset()
    plain: bool = False
    rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The scores of every sibling, and the notes of every sibling (empty if nobody has any)."""

    rows: Sequence[Scores]
    notes: Sequence[Notes] = ()


@runtime_checkable
class Checked(Protocol):
    """A reward that can tell before a run whether these prompts can be judged; it raises DataError if not."""

    def check(self, prompts: Sequence[Prompt]) -> None: ...


@runtime_checkable
class Warmed(Protocol):
    """A reward that loads something slow: called once where it will run, outside every timeout of a group."""

    def warm(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A function under the name its scores are kept by. ``weight`` counts in a sum of several."""

    name: str
    function: Reward
    signature: Signature
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rewards:
    """All that judges a group. One part whose scores are simply added up, or several ``named`` ones with weights."""

    parts: tuple[Part, ...]
    named: bool = False

    @property
    def name(self) -> str:
        """How messages call it."""
        return " + ".join(part.name for part in self.parts)

    @property
    def score_names(self) -> tuple[str, ...] | None:
        """The names of all scores, as far as they are known before one is returned; None: a reward may give a dict."""
        if self.named or self.parts[0].signature.form == "verl":
            return tuple(part.name for part in self.parts)
        return None

    def total(self, scores: Scores) -> float:
        """The scalar reward: the sum of weight x score over the scores that apply."""
        if not self.named:
            if len(scores) == 1:
                return next(iter(scores.values())) or 0.0
            return math.fsum(score for score in scores.values() if score is not None)
        weighted = ((part.weight, scores.get(part.name)) for part in self.parts)
        return math.fsum(weight * score for weight, score in weighted if score is not None)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Let every part that can look at the prompts before the run. Raises DataError."""
        for part in self.parts:
            _check_columns(part, prompts)
            if isinstance(part.function, Checked):
                part.function.check(prompts)

    def warm(self) -> None:
        """Load what the parts need, in the process in which they will be called."""
        for part in self.parts:
            if isinstance(part.function, Warmed):
                part.function.warm()


def reward_name(reward: Reward) -> str:
    """The name under which the scores of ``reward`` are kept: a function's own, else its type's."""
    while isinstance(reward, partial):
        reward = reward.func
    name = getattr(reward, "__name__", None)
    return name if isinstance(name, str) else type(reward).__name__


def _check_columns(part: Part, prompts: Sequence[Prompt]) -> None:
    required = part.signature.required
    for prompt in prompts if required else ():
        missing = sorted(required - prompt.data.keys())
        if missing:
            raise DataError(
                f"the reward {part.name!r} takes the column {', '.join(missing)}, and the prompt {prompt.uid!r} has "
                f"only {', '.join(sorted(prompt.data)) or 'no data'}. Give each one, or the parameter a default."
            )
