"""What judges trajectories."""

from typing import Any, Literal

from pydantic import Field, JsonValue, create_model, model_validator

from stretto.config.base import Section, check_name
from stretto.config.fields import as_mapping

__all__ = ["RewardConfig", "RewardPart"]

# ``with`` is a word of Python, so no class body can hold it.
_FIELDS: dict[str, Any] = {
    "use": (str | None, None),
    "with": (
        dict[str, JsonValue],
        Field(
            default_factory=dict[str, JsonValue],
            description="Settings of the reward: ``{ignore_case: true}``.",
        ),
    ),
}
_Settings: type[Section] = create_model("_Settings", __base__=Section, **_FIELDS)


class RewardPart(_Settings):
    """One of several rewards; the name it has in ``reward.parts`` is the one it is recorded under."""

    use: str
    """A built-in reward, or ``module:function``."""
    weight: float = 1.0
    """What its value is multiplied by in the sum; 0 records it and leaves it out of the sum."""

    @property
    def settings(self) -> dict[str, JsonValue]:
        """``with``."""
        return getattr(self, "with")


class RewardConfig(_Settings):
    """What judges a trajectory: one reward (``use``), or several with weights (``parts``)."""

    use: str | None = "exact_match"
    """A built-in reward, ``module:function``, or ``python:NAME`` when a function was passed to ``stretto.train``."""
    parts: dict[str, RewardPart] | None = None
    """Several rewards by name, instead of ``use``: the reward is the sum of weight x value of those that apply."""
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

    @property
    def settings(self) -> dict[str, JsonValue]:
        """``with``."""
        return getattr(self, "with")

    @model_validator(mode="before")
    @classmethod
    def _parts_stand_for_use(cls, data: object) -> object:
        given = as_mapping(data)
        if given is not None and given.get("parts") is not None and "use" not in given:
            return {**given, "use": None}
        return data

    @model_validator(mode="after")
    def _one_or_several(self) -> "RewardConfig":
        if (self.use is None) == (self.parts is None):
            what = "both are set" if self.use is not None else "neither is set"
            raise ValueError(
                f"reward.use names one reward and reward.parts several, and {what}. Keep exactly one of them "
                "(reward.use=null takes use out)."
            )
        if self.parts is None:
            return self
        for name in self.parts:
            check_name("reward.parts has a part", name)
        if self.settings:
            raise ValueError("reward.with is set beside reward.parts. Write it in the part: reward.parts.NAME.with.")
        if not any(part.weight for part in self.parts.values()):
            raise ValueError(
                f"reward.parts={', '.join(self.parts) or '{}'} has no part with a weight other than 0, so every reward "
                "would be 0. Give one a weight."
            )
        return self
