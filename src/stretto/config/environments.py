"""The environment that a policy talks to over several turns."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, JsonValue

from stretto.config.base import Section

__all__ = ["EnvironmentConfig"]


class EnvironmentConfig(Section):
    """Who answers the policy, for how long, and what happens when it fails. Without it every attempt is one turn."""

    use: str
    """``module:Class`` (or a function) of ``(prompt, **with)``; ``python:NAME`` if one was passed to Stretto."""
    vars()["with"] = Field(
        default_factory=dict[str, JsonValue], description="What is passed to it besides the prompt, by name."
    )
    __annotations__["with"] = dict[str, JsonValue]
    max_turns: int = Field(default=8, ge=1)
    """Completions of one attempt; after the last it ends with ``finish="length"``."""
    max_total_tokens: int = Field(default=512, ge=2)
    """Token budget of an attempt's row: prompt, completions and replies. What would not fit ends the attempt."""
    on_length: Literal["end", "reply"] = "end"
    """When ``sampling.max_tokens`` cuts a completion: end the attempt, or let the environment reply to it."""
    on_error: Literal["fail", "retry", "drop"] = "fail"
    """When it raises, is late or dies: fail the run, begin the attempt again (then fail), or drop the group."""
    retries: int = Field(default=2, ge=1)
    """How often ``retry`` begins an attempt again."""
    max_dropped: float = Field(default=0.1, gt=0, le=1)
    """Under ``drop``: largest share of the groups that may be dropped before the run fails."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds one call (start, reply or score) may take."""
    workers: int = Field(default=1, ge=0)
    """Environment processes, each with many episodes; 0 plays inside the run's process, without a timeout."""

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """``with``, which is no name in Python."""
        return getattr(self, "with")
