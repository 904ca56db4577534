"""MaxRL: from the mean reward to its logarithm."""

from typing import ClassVar, Literal

from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import MaxRlAdvantages, Singleton
from stretto.config.algorithms.parts import ClipFields, KlFields, RatioFields, UpdateFields, like

__all__ = ["MaxRlConfig"]


class MaxRlConfig(UpdateFields, RatioFields, KlFields, ClipFields, PolicyGradient):
    """Maximum-likelihood RL: rewards relative to their group's mean, so that hard prompts weigh more.

    Tajwar et al. 2026, arXiv:2602.02710. Rewards are 0 or more.
    """

    type: Literal["maxrl"] = "maxrl"
    """Which algorithm."""
    epsilon: float = like(MaxRlAdvantages, "epsilon")
    singleton: Singleton = like(MaxRlAdvantages, "singleton")

    estimator_model: ClassVar[SectionType] = MaxRlAdvantages
    formula: ClassVar[str] = (
        "A = (r - mean(r)) / (mean(r) + epsilon), over the group\n"
        "L = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), mean over tokens"
    )
    paper: ClassVar[str] = "Tajwar et al. 2026, arXiv:2602.02710, algorithm 1"
