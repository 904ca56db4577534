"""SAPO: a soft gate in place of the clip."""

from typing import ClassVar, Literal

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.losses import SapoLoss
from stretto.config.algorithms.parts import GroupFields, KlFields, RatioFields, UpdateFields, like

__all__ = ["SapoConfig"]


class SapoConfig(UpdateFields, RatioFields, KlFields, GroupFields, PolicyGradient):
    """Soft adaptive policy optimisation: a sigmoid gate on the ratio, steeper for negative advantages.

    Gao et al. 2025, arXiv:2511.20347, with the temperatures of its section 5.1.
    """

    type: Literal["sapo"] = "sapo"
    """Which algorithm."""
    tau_pos: float = like(SapoLoss, "tau_pos")
    tau_neg: float = like(SapoLoss, "tau_neg")
    log_ratio_clamp: float | None = like(SapoLoss, "log_ratio_clamp")
    aggregate: Aggregation = like(UpdateFields, "aggregate", "seq_mean_token_mean")

    loss_model: ClassVar[SectionType] = SapoLoss
    formula: ClassVar[str] = (
        "A = (r - mean(r)) / (std(r) + epsilon), over the group\n"
        "L = -A (4 / tau) sigmoid(tau (ratio - 1)), tau_pos where A > 0, else tau_neg; mean per row, mean over rows"
    )
    paper: ClassVar[str] = "Gao et al. 2025, arXiv:2511.20347, eq. 5-6"
