"""One half of a run alone: rollout without training, or training without rollout."""

from pydantic import Field, model_validator

from stretto.config.base import Section

__all__ = ["DebugConfig"]


class DebugConfig(Section):
    """One half of the main phase alone, to look for a fault in it. A warm-up stays as it is."""

    train: bool = True
    """Whether to train; false: groups are sampled, judged and recorded, and no weight changes."""
    rollouts_from: str | None = Field(default=None, min_length=1)
    """A run, by name or folder, whose recorded groups are trained on in place of sampling; null: sample."""

    @model_validator(mode="after")
    def _one_half(self) -> "DebugConfig":
        if not self.train and self.rollouts_from is not None:
            raise ValueError(
                f"debug.train=false and debug.rollouts_from={self.rollouts_from} leave nothing to do: neither half "
                "would run. Keep one of them."
            )
        return self
