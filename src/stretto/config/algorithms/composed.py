"""An algorithm put together by hand: any estimator with any loss."""

from typing import ClassVar, Literal

from pydantic import Field

from stretto.config.algorithms.base import PolicyGradient
from stretto.config.algorithms.estimators import Advantages, GroupAdvantages
from stretto.config.algorithms.losses import ClipLoss, PolicyLoss
from stretto.config.algorithms.parts import KlFields, RatioFields, UpdateFields

__all__ = ["ComposedConfig"]


class ComposedConfig(UpdateFields, RatioFields, KlFields, PolicyGradient):
    """Any advantages with any loss, such as advantages={type: rloo} with policy_loss={type: gspo}.

    For estimators and losses that no named algorithm has (pass_at_k, gdpo, clip_cov, kl_cov, dppo_tv, vespo, ...), and
    for combinations of one's own.
    """

    type: Literal["composed"] = "composed"
    """Which algorithm."""
    advantages: Advantages = GroupAdvantages()
    """How rewards become advantages."""
    policy_loss: PolicyLoss = ClipLoss()
    """The loss of a token."""
    dynamic_sampling: bool = Field(default=False)
    """Whether groups whose rewards are all equal are dropped and drawn again."""

    formula: ClassVar[str] = "as advantages and policy_loss say"

    @property
    def compares_siblings(self) -> bool:
        """Whether a group of one has nothing to learn from."""
        return self.advantages.type not in ("reinforce_pp", "remax")

    @property
    def estimator(self) -> Advantages:
        """How advantages are made."""
        return self.advantages

    @property
    def loss(self) -> PolicyLoss:
        """The loss of a token."""
        return self.policy_loss
