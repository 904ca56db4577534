"""GSPO: the ratio is the sequence's."""

from typing import ClassVar, Literal

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import GroupAdvantages
from stretto.config.algorithms.losses import GspoLoss
from stretto.config.algorithms.parts import GroupFields, KlFields, RatioFields, UpdateFields, like

__all__ = ["GspoConfig"]


class GspoConfig(UpdateFields, RatioFields, KlFields, GroupFields, PolicyGradient):
    """Group sequence policy optimisation: one ratio for a whole row, clipped closely.

    Zheng et al. 2025, arXiv:2507.18071. The bounds (section 5.1) act only where a step has several updates, or its
    rollouts lag.
    """

    type: Literal["gspo"] = "gspo"
    """Which algorithm."""
    clip_low: float = like(GspoLoss, "clip_low")
    clip_high: float = like(GspoLoss, "clip_high")
    log_ratio_max: float | None = like(GspoLoss, "log_ratio_max")
    mean_advantages: bool = like(GspoLoss, "mean_advantages")
    aggregate: Aggregation = like(UpdateFields, "aggregate", "seq_mean_token_mean")

    estimator_model: ClassVar[SectionType] = GroupAdvantages
    loss_model: ClassVar[SectionType] = GspoLoss
    formula: ClassVar[str] = (
        "A = (r - mean(r)) / (std(r) + epsilon), over the group\n"
        "s = exp(mean over the row's tokens of logp - old_logp)\n"
        "L = max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)), mean over rows"
    )
    paper: ClassVar[str] = "Zheng et al. 2025, arXiv:2507.18071, eq. 5-7"
