"""CISPO: the clipped ratio is a weight."""

from typing import ClassVar, Literal

from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.losses import CispoLoss
from stretto.config.algorithms.parts import GroupFields, KlFields, RatioFields, UpdateFields, like

__all__ = ["CispoConfig"]


class CispoConfig(UpdateFields, RatioFields, KlFields, GroupFields, PolicyGradient):
    """Clipped importance-sampling weights: every token keeps its gradient, and its weight is bounded.

    MiniMax 2025, arXiv:2506.13585, section 3.1. It sets no lower bound and does not state the upper one; Khatri et al.
    2025, arXiv:2510.13786, found no difference between 4, 5 and 8 (appendix A.17).
    """

    type: Literal["cispo"] = "cispo"
    """Which algorithm."""
    ratio_min: float = like(CispoLoss, "ratio_min")
    ratio_max: float = like(CispoLoss, "ratio_max")
    log_ratio_clamp: float | None = like(CispoLoss, "log_ratio_clamp")

    loss_model: ClassVar[SectionType] = CispoLoss
    formula: ClassVar[str] = (
        "A = (r - mean(r)) / (std(r) + epsilon), over the group\n"
        "L = -A sg(clip(ratio, ratio_min, ratio_max)) logp, mean over tokens"
    )
    paper: ClassVar[str] = "MiniMax 2025, MiniMax-M1, arXiv:2506.13585, eq. 4-5"
