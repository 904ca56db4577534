"""RLOO: the other attempts are the baseline."""

from typing import ClassVar, Literal

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import RlooAdvantages
from stretto.config.algorithms.parts import ClipFields, RatioFields, RewardKlFields, UpdateFields, like

__all__ = ["RlooConfig"]


class RlooConfig(UpdateFields, RatioFields, RewardKlFields, ClipFields, PolicyGradient):
    """REINFORCE leave-one-out: a reward less the mean of its siblings', on the row as a whole.

    Ahmadian et al. 2024, arXiv:2402.14740, section 2.3; its KL penalty is in the reward of the row (its eq. 3). With
    one update a step the ratio is 1, and this is REINFORCE.
    """

    type: Literal["rloo"] = "rloo"
    """Which algorithm."""
    singleton: Literal["zero", "raw"] = like(RlooAdvantages, "singleton")
    aggregate: Aggregation = like(UpdateFields, "aggregate", "seq_mean_token_sum")

    estimator_model: ClassVar[SectionType] = RlooAdvantages
    formula: ClassVar[str] = (
        "A = r - mean of the siblings' r, with r = reward - kl_coef sum over the row's tokens of KL\n"
        "L = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), sum over tokens, mean over rows"
    )
    paper: ClassVar[str] = "Ahmadian et al. 2024, Back to basics, arXiv:2402.14740, section 2.3"
