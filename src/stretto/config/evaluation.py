"""When to evaluate, on what, and how attempts are sampled and counted; which metrics come of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from stretto.config.base import Section, check_name
from stretto.config.intervals import Interval
from stretto.config.prompts import Prompts
from stretto.config.rewards import RewardConfig
from stretto.config.rollouts import check_stops

__all__ = ["HELD_OUT", "EvalBy", "EvalSetConfig", "EvalSettings", "EvaluateConfig", "powers", "settings_of", "targets"]

EvalBy: TypeAlias = Literal["auto", "attempts", "pairs"]

HELD_OUT = "held_out"
"""The set that exists when ``prompts.held_out`` is above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """How one set is sampled and counted: its own settings over those of its ``evaluate`` section.

    ``max_tokens`` and ``stop`` None: those of ``sampling``. The fields are named as in the recipe.
    """

    by: EvalBy
    limit: int | None
    n: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    max_tokens: int | None
    stop: tuple[str, ...] | None
    score: str | None
    full_mark: float
    vote: str | None


class EvalSetConfig(Section):
    """Prompts to evaluate on beside the held-out share. Settings that are null are those of the section around it."""

    prompts: Prompts
    """Where its prompts come from; all are evaluated, or ``limit`` of them."""
    reward: RewardConfig | None = None
    """What judges its attempts; null: the recipe's reward."""
    by: EvalBy | None = None
    """Whether the policy's attempts count, or which of two answers is found the better."""
    limit: int | None = Field(default=None, ge=1)
    """Evaluate only this many of its prompts (a fixed choice by seed)."""
    n: int | None = Field(default=None, ge=1)
    """Attempts per prompt."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = Field(default=None, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Keep tokens at least this many times as likely as the likeliest; 0 keeps all."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest completion, in tokens."""
    stop: tuple[str, ...] | None = None
    """Texts that end a completion."""
    score: str | None = None
    """The named reward that decides whether an attempt is right; null with a reward of its own: the total."""
    full_mark: float | None = None
    """An attempt is right from this score on."""
    vote: str | None = None
    """A regular expression for the answer that a text votes for."""


class EvaluateConfig(Section):
    """Evaluation on the held-out prompts and on further sets."""

    every: Interval | None = None
    """Steps between evaluations, or a text such as ``10 minutes`` or ``0.5 epochs``; null: only at start and end."""
    at_start: bool = True
    """Evaluate before the first step."""
    at_end: bool = True
    """Evaluate after the last step."""
    engines: int = Field(default=0, ge=0)
    """Engines for evaluations alone, like ``engine``: training goes on meanwhile, and at most so many evaluations are
    under way at a time, each of the weights it began with. 0: the run's engine, while training waits."""
    by: EvalBy = "auto"
    """What counts: ``attempts`` of the policy, judged by the reward; ``pairs``, the share of prompts whose chosen
    answer the trained Model finds better than the rejected one; ``auto``: pairs where the workflow learns from them
    (dpo, reward-model)."""
    limit: int | None = Field(default=None, ge=1)
    """Evaluate only this many prompts of a set (a fixed choice by seed); null: all."""
    n: int = Field(default=1, ge=1)
    """Attempts per prompt; several give avg@n, pass@k and maj@n."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 is greedy, which needs n=1."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Keep tokens at least this many times as likely as the likeliest; 0 keeps all."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest completion, in tokens; null: ``sampling.max_tokens``."""
    stop: tuple[str, ...] | None = None
    """Texts that end a completion; null: ``sampling.stop``."""
    score: str | None = None
    """The named reward that decides whether an attempt is right; null: the total."""
    full_mark: float = 1.0
    """An attempt is right from this score on."""
    vote: str | None = None
    """A regular expression for the answer that a text votes for in maj@n (its last match; group 1 if it has one); null:
    the whole text."""
    sets: dict[str, EvalSetConfig] = Field(default_factory=dict[str, EvalSetConfig])
    """Further sets by name, whose metrics are ``NAME/accuracy`` and so on."""

    @model_validator(mode="after")
    def _names_are_words(self) -> "EvaluateConfig":
        for name in self.sets:
            if name == HELD_OUT:
                raise ValueError(
                    f"evaluate.sets has a set called {HELD_OUT}, which is the share that prompts.held_out keeps from "
                    "training. Give it another name."
                )
            check_name("evaluate.sets has a set", name)
        return self

    @model_validator(mode="after")
    def _settings_fit(self) -> "EvaluateConfig":
        each = {"evaluate": settings_of(self, HELD_OUT)}
        each |= {f"evaluate.sets.{name}": settings_of(self, name) for name in self.sets}
        for where, settings in each.items():
            _check_settings(where, settings)
        cut = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        for where, section in (("evaluate", self), *((f"evaluate.sets.{k}", v) for k, v in self.sets.items())):
            used = each.values() if section is self else (each[where],)
            given = [key for key, plain in cut.items() if getattr(section, key) not in (None, plain)]
            if given and all(settings.temperature == 0 for settings in used):
                raise ValueError(
                    f"{where}.{given[0]}={getattr(section, given[0])} cuts what is sampled from, and temperature=0 "
                    f"always takes the likeliest token. Set {where}.temperature=1, or leave {given[0]} out."
                )
        return self


def settings_of(evaluate: EvaluateConfig, name: str) -> EvalSettings:
    """The settings of the set ``name``; of any name that is not in ``sets``, those of the section itself."""
    own = evaluate.sets.get(name)
    values = {key: getattr(evaluate, key) for key in EvalSettings.__dataclass_fields__}
    if own is not None:
        if own.reward is not None:
            values["score"] = None  # another reward gives scores by other names
        values |= {key: value for key in values if (value := getattr(own, key)) is not None}
    return EvalSettings(**values)


def targets(evaluate: EvaluateConfig, *, held_out: bool = True) -> Iterator[str]:
    """Every metric that is to rise: what ``save.keep_best`` and ``warmup.until`` may name."""
    for name in ([HELD_OUT] if held_out else []) + list(evaluate.sets):
        yield from (f"{name}/{metric}" for metric in ("accuracy", "reward", "accuracy/low", "accuracy/high"))
        n = settings_of(evaluate, name).n
        if n > 1:
            yield from (f"{name}/avg@{n}", f"{name}/maj@{n}", *(f"{name}/pass@{k}" for k in powers(n)))


def powers(n: int) -> tuple[int, ...]:
    """The k of pass@k that are worth a number: 1, 2, 4, ... up to n, and n itself."""
    return tuple(sorted({2**i for i in range(n.bit_length())} | {n}))


def _check_settings(where: str, settings: EvalSettings) -> None:
    if settings.temperature == 0 and settings.n > 1:
        raise ValueError(
            f"{where}.n={settings.n} with temperature=0 would make the same greedy attempt {settings.n} times. "
            f"Set {where}.temperature=1, or n=1."
        )
    check_stops(f"{where}.stop", settings.stop or ())
    if settings.vote is not None:
        try:
            re.compile(settings.vote)
        except re.error as error:
            raise ValueError(
                f"{where}.vote={settings.vote!r} is not a regular expression: {error}. Repair it, or leave it out."
            ) from error
