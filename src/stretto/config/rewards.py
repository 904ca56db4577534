"""What judges trajectories."""

from typing import Literal

from pydantic import Field

from stretto.config.base import Section

__all__ = ["RewardConfig"]


class RewardConfig(Section):
    """What judges a trajectory."""

    use: str = "exact_match"
    """``exact_match``, ``module:function``, or ``python:NAME`` when a function was passed to ``stretto.train``."""
    on_error: Literal["fail", "retry", "drop"] = "fail"
    """When a reward raises, times out or returns NaN: fail the run, retry then fail, or drop the group."""
    retries: int = Field(default=2, ge=1)
    """How often ``retry`` tries again."""
    max_dropped: float = Field(default=0.1, gt=0, le=1)
    """Under ``drop``: largest share of judged groups that may be dropped before the run fails."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds one group's rewards may take."""
    workers: int = Field(default=1, ge=0)
    """Reward processes; 0 judges inside the run's process, without a timeout (trusted rewards only)."""
