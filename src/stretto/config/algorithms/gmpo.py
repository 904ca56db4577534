"""GMPO: the geometric mean of the ratios."""

from typing import ClassVar, Literal

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.losses import GmpoLoss
from stretto.config.algorithms.parts import GroupFields, KlFields, RatioFields, UpdateFields, like

__all__ = ["GmpoConfig"]


class GmpoConfig(UpdateFields, RatioFields, KlFields, GroupFields, PolicyGradient):
    """Geometric-mean policy optimisation: a row's value is the geometric mean of its clipped ratios.

    Zhao et al. 2025, arXiv:2507.20673.
    """

    type: Literal["gmpo"] = "gmpo"
    """Which algorithm."""
    log_clip_low: float = like(GmpoLoss, "log_clip_low")
    log_clip_high: float = like(GmpoLoss, "log_clip_high")
    log_ratio_clamp: float | None = like(GmpoLoss, "log_ratio_clamp")
    aggregate: Aggregation = like(UpdateFields, "aggregate", "seq_mean_token_mean")

    loss_model: ClassVar[SectionType] = GmpoLoss
    formula: ClassVar[str] = (
        "A = (r - mean(r)) / (std(r) + epsilon), over the group\n"
        "L = -A exp(mean over the row's tokens of d), mean over rows;\n"
        "d = logp - old_logp, where A > 0 at most log_clip_high, else at least -log_clip_low"
    )
    paper: ClassVar[str] = "Zhao et al. 2025, arXiv:2507.20673, eq. 4"
