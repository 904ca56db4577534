"""CPGD: a clipped policy gradient with a drift term."""

from typing import ClassVar, Literal

from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import CpgdAdvantages
from stretto.config.algorithms.losses import CpgdLoss
from stretto.config.algorithms.parts import KlFields, RatioFields, UpdateFields, like

__all__ = ["CpgdConfig"]


class CpgdConfig(UpdateFields, RatioFields, KlFields, PolicyGradient):
    """Clipped policy gradient with policy drift: log-probs are clipped in place of ratios, and drift costs.

    Liu et al. 2025, arXiv:2505.12504. Its eq. 2 is aggregate=prompt_mean. It gives no numbers for drift_coef and
    drift_max: 0.001 is what public training scripts set, 0.2 is ours. With drift_coef=0 this is what it calls CPG.
    """

    type: Literal["cpgd"] = "cpgd"
    """Which algorithm."""
    weight: Literal["clip_filter", "group_std", "none"] = like(CpgdAdvantages, "weight")
    cap: float = like(CpgdAdvantages, "cap")
    count: Literal["groups", "rows"] = like(CpgdAdvantages, "count")
    epsilon: float = like(CpgdAdvantages, "epsilon")
    clip_low: float = like(CpgdLoss, "clip_low")
    clip_high: float = like(CpgdLoss, "clip_high")
    drift_coef: float = like(CpgdLoss, "drift_coef", 0.001)
    drift_max: float | None = like(CpgdLoss, "drift_max", 0.2)
    log_ratio_clamp: float | None = like(CpgdLoss, "log_ratio_clamp")

    estimator_model: ClassVar[SectionType] = CpgdAdvantages
    loss_model: ClassVar[SectionType] = CpgdLoss
    formula: ClassVar[str] = (
        "A = weight (r - mean(r)), over the group\n"
        "L = -A clipped logp + drift_coef drift, mean over tokens\n"
        "clipped: A > 0: at most old_logp + log(1 + clip_high), else at least old_logp + log(1 - clip_low)\n"
        "drift = ratio - 1 - log ratio, its derivative by logp (ratio - 1) at most drift_max"
    )
    paper: ClassVar[str] = "Liu et al. 2025, arXiv:2505.12504, eq. 2"
