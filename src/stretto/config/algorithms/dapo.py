"""DAPO: GRPO with a higher upper bound, dynamic sampling and a soft limit of the length."""

from typing import ClassVar, Literal

from pydantic import Field

from stretto.config.algorithms.base import PolicyGradient
from stretto.config.algorithms.parts import ClipFields, GroupFields, KlFields, RatioFields, UpdateFields, like

__all__ = ["DapoConfig"]


class DapoConfig(UpdateFields, RatioFields, KlFields, ClipFields, GroupFields, PolicyGradient):
    """GRPO with a higher upper bound, groups without a difference drawn again, and overlong attempts charged.

    Yu et al. 2025, arXiv:2503.14476: clip-higher (section 3.1), dynamic sampling (3.2; the cap is
    schedule.max_refills), token mean (3.3), soft overlong punishment (3.4). Its runs have 20,480 tokens with a buffer
    of 4,096, and rewards of 1 and -1: where they are 1 and 0, overlong_penalty=0.5 is in proportion.
    """

    type: Literal["dapo"] = "dapo"
    """Which algorithm."""
    clip_high: float = like(ClipFields, "clip_high", 0.28)
    dynamic_sampling: bool = True
    """Whether groups whose rewards are all equal are dropped and drawn again."""
    overlong_buffer: int | None = Field(default=None, ge=0)
    """Tokens before sampling.max_tokens within which the reward falls; null: a fifth of it; 0: no charge."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """What is taken from the reward of an attempt as long as sampling.max_tokens; linear within the buffer."""

    formula: ClassVar[str] = (
        "r = reward - overlong_penalty max(0, length - (max_tokens - buffer)) / buffer\n"
        "A = (r - mean(r)) / (std(r) + epsilon), over the group\n"
        "L = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), mean over tokens"
    )
    paper: ClassVar[str] = "Yu et al. 2025, arXiv:2503.14476, eq. 8-13"

    @property
    def charges(self) -> bool:
        """Whether long attempts cost anything."""
        return self.overlong_buffer != 0 and self.overlong_penalty > 0

    def buffer(self, max_tokens: int) -> int:
        """Tokens in which the reward falls, of ``max_tokens``."""
        return max(max_tokens // 5, 1) if self.overlong_buffer is None else self.overlong_buffer
