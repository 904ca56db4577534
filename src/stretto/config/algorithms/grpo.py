"""GRPO, and Dr. GRPO, which is GRPO with other settings."""

from typing import ClassVar, Literal

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient
from stretto.config.algorithms.estimators import Center, GroupAdvantages, Singleton
from stretto.config.algorithms.parts import ClipFields, GroupFields, KlFields, RatioFields, UpdateFields, like

__all__ = ["DrGrpoConfig", "GrpoConfig"]


class GrpoConfig(UpdateFields, RatioFields, KlFields, ClipFields, GroupFields, PolicyGradient):
    """Group-relative policy optimisation: rewards against their group's mean and standard deviation, PPO's clip.

    Shao et al. 2024, arXiv:2402.03300. Its eq. 3 is aggregate=seq_mean_token_mean with kl_coef=0.04; the defaults are
    what is common today: no reference, and every token counts the same.
    """

    type: Literal["grpo"] = "grpo"
    """Which algorithm."""

    formula: ClassVar[str] = (
        "A = (r - mean(r)) / (std(r) + epsilon), over the group\n"
        "L = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)) + kl_coef KL, mean over tokens"
    )
    paper: ClassVar[str] = "Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3 and section 4.1.2"


class DrGrpoConfig(UpdateFields, RatioFields, KlFields, ClipFields, PolicyGradient):
    """GRPO without its two biases: no division by the standard deviation, and a constant in place of lengths.

    Liu et al. 2025, arXiv:2503.20783, section 3.2.
    """

    type: Literal["dr-grpo"] = "dr-grpo"
    """Which algorithm."""
    center: Center = like(GroupAdvantages, "center")
    singleton: Singleton = like(GroupAdvantages, "singleton")
    aggregate: Aggregation = like(UpdateFields, "aggregate", "seq_mean_token_sum_norm")

    formula: ClassVar[str] = (
        "A = r - mean(r), over the group\n"
        "L = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), sum over tokens / norm, mean over rows"
    )
    paper: ClassVar[str] = "Liu et al. 2025, Understanding R1-Zero-like training, arXiv:2503.20783, section 3.2"

    @property
    def estimator(self) -> GroupAdvantages:
        """Rewards less the mean of their group."""
        return GroupAdvantages(center=self.center, scale="none", singleton=self.singleton)
