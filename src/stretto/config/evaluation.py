"""When and how to evaluate."""

from typing import Literal

from pydantic import Field

from stretto.config.base import Section

__all__ = ["EvalMetric", "EvaluateConfig"]


EvalMetric = Literal["held_out/accuracy", "held_out/reward"]
"""What an evaluation measures that is to rise: what ``until`` and ``keep_best`` may name."""


class EvaluateConfig(Section):
    """Greedy evaluation on the held-out prompts."""

    every: int | None = Field(default=None, ge=1)
    """Steps between evaluations; null: only at start and end."""
    at_start: bool = True
    """Evaluate before the first step."""
    at_end: bool = True
    """Evaluate after the last step."""
    limit: int | None = Field(default=None, ge=1)
    """Evaluate only this many held-out prompts (a fixed choice by seed); null: all."""
