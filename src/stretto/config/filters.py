"""Which groups of the main phase are trained on: what the pool drops, to draw others in their place."""

from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from stretto.config.base import Section

__all__ = ["FilterConfig", "FilterKind", "LengthRange", "RewardRange"]

FilterKind: TypeAlias = Literal["zero_variance", "reward", "length", "use"]
"""The filters, by their keys, in the order in which a group meets them."""


def _check_range(key: str, low: float | None, high: float | None) -> None:
    if low is not None and high is not None and low > high:
        raise ValueError(f"{key}.min={low} is above {key}.max={high}, so no group would be kept. Swap them.")


class RewardRange(Section):
    """Bounds of the mean reward of a group's attempts; a group on a bound is kept."""

    min: float | None = None
    """Smallest mean reward of a group that is kept; null: no bound."""
    max: float | None = None
    """Largest mean reward of a group that is kept; null: no bound."""

    @model_validator(mode="after")
    def _in_order(self) -> "RewardRange":
        _check_range("filter.reward", self.min, self.max)
        return self


class LengthRange(Section):
    """Bounds of the written tokens per attempt, as a mean over the group; a group on a bound is kept."""

    min: float | None = Field(default=None, ge=0)
    """Smallest mean number of tokens that an attempt of a kept group writes; null: no bound."""
    max: float | None = Field(default=None, ge=0)
    """Largest mean number of tokens that an attempt of a kept group writes; null: no bound."""

    @model_validator(mode="after")
    def _in_order(self) -> "LengthRange":
        _check_range("filter.length", self.min, self.max)
        return self


class FilterConfig(Section):
    """Groups that the main phase does not train on: they are dropped, and other prompts drawn in their place.

    ``schedule.max_refills`` says how many, before the run fails with the rewards that it saw.
    """

    zero_variance: bool | None = None
    """Drop groups whose attempts all have the same reward, which teach nothing; null: as the algorithm is defined."""
    reward: RewardRange = RewardRange()
    """Drop groups whose mean reward is outside."""
    score: str | None = None
    """Which of several named rewards these two look at (``correct`` beside a bonus for form); null: the total."""
    length: LengthRange = LengthRange()
    """Drop groups whose attempts write too little or too much on average."""
    use: str | None = None
    """``module:function`` from a Group to true (keep), false (drop) or text (drop, for that reason)."""

    def check(self, n: int, *, dynamic: bool = False) -> None:
        """Raises ValueError for what no group of ``n`` attempts can pass. ``dynamic``: what null means."""
        if n == 1 and (dynamic if self.zero_variance is None else self.zero_variance):
            by = "algorithm.dynamic_sampling" if self.zero_variance is None else "filter.zero_variance"
            raise ValueError(
                f"{by}=true drops groups whose attempts all have the same reward, and with sampling.n=1 "
                f"that is every group. Set sampling.n=2 or more, or {by}=false."
            )
