"""ReMax: the greedy attempt is the baseline."""

from typing import ClassVar, Literal

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import RemaxAdvantages
from stretto.config.algorithms.parts import ClipFields, RatioFields, RewardKlFields, UpdateFields, like

__all__ = ["RemaxConfig"]


class RemaxConfig(UpdateFields, RatioFields, RewardKlFields, ClipFields, PolicyGradient):
    """ReMax: the reward less that of the greedy attempt at the same prompt, which is sampled beside the others.

    Li et al. 2023, arXiv:2310.10505. The greedy attempt is a baseline only: nothing is trained on it.
    """

    type: Literal["remax"] = "remax"
    """Which algorithm."""
    aggregate: Aggregation = like(UpdateFields, "aggregate", "seq_mean_token_sum")

    estimator_model: ClassVar[SectionType] = RemaxAdvantages
    formula: ClassVar[str] = (
        "A = (reward to go, less kl_coef KL) - reward of the greedy attempt\n"
        "L = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), sum over tokens, mean over rows"
    )
    paper: ClassVar[str] = "Li et al. 2023, arXiv:2310.10505"

    @property
    def compares_siblings(self) -> bool:
        """No: every attempt is compared with the greedy one."""
        return False
