"""REINFORCE++: whitened over the batch, without a critic."""

from typing import ClassVar, Literal

from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import ReinforcePpAdvantages, ReinforcePpBaselineAdvantages, Stabilizer
from stretto.config.algorithms.parts import ClipFields, RatioFields, RewardKlFields, UpdateFields, like

__all__ = ["ReinforcePpConfig"]


class ReinforcePpConfig(UpdateFields, RatioFields, RewardKlFields, ClipFields, PolicyGradient):
    """REINFORCE++: rewards to go, whitened over the tokens of the batch; one attempt per prompt will do.

    Hu et al. 2025, arXiv:2501.03262. With baseline=true, rewards (the penalty taken from them) are first less the mean
    of their group. The paper's baseline form has its KL in the loss, by k2: that is algorithm.type=composed with
    advantages={type: reinforce_pp_baseline} and kl_kind=k2.
    """

    type: Literal["reinforce-pp"] = "reinforce-pp"
    """Which algorithm."""
    baseline: bool = False
    """Whether the mean of the group is taken from rewards before they are whitened (REINFORCE++-baseline)."""
    singleton: Literal["zero", "raw"] = like(ReinforcePpBaselineAdvantages, "singleton")
    gamma: float = like(ReinforcePpAdvantages, "gamma")
    ddof: Literal[0, 1] = like(ReinforcePpAdvantages, "ddof")
    epsilon: float = like(ReinforcePpAdvantages, "epsilon")
    stabilizer: Stabilizer = like(ReinforcePpAdvantages, "stabilizer")

    formula: ClassVar[str] = (
        "A = whitened over tokens (sum of r_t - kl_coef KL_t from t on, discounted by gamma)\n"
        "baseline=true: A = whitened over tokens (r - mean(r)), r = reward - kl_coef sum over the row's tokens of KL\n"
        "L = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), mean over tokens"
    )
    paper: ClassVar[str] = "Hu et al. 2025, arXiv:2501.03262, eq. 4-7"

    @property
    def compares_siblings(self) -> bool:
        """Whether a group of one has nothing to learn from."""
        return self.baseline

    @property
    def estimator_model(self) -> SectionType:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Which estimator: by ``baseline``."""
        return ReinforcePpBaselineAdvantages if self.baseline else ReinforcePpAdvantages
