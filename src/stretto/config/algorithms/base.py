"""What algorithms have in common: the parts they are made of, and what they say of themselves."""

from typing import Any, ClassVar, TypeAlias

from stretto.config.algorithms.estimators import Advantages, GaeConfig, GroupAdvantages
from stretto.config.algorithms.losses import ClipLoss, LossTerms, PolicyLoss
from stretto.config.algorithms.parts import AdaptiveKl, RewardKl, collect_into
from stretto.config.base import Section

__all__ = ["Named", "PolicyGradient", "SectionType"]

SectionType: TypeAlias = type[Section]


class Named(Section):
    """An algorithm by name. The first line of its docstring, ``formula`` and ``paper`` are what is shown of it."""

    type: Any
    """Which algorithm."""

    formula: ClassVar[str] = ""
    """What it computes, in a few lines of text."""
    paper: ClassVar[str] = ""
    """Where it is from."""


class PolicyGradient(Named):
    """An algorithm that makes advantages of rewards, and updates by a loss over tokens.

    The two parts are named here; an algorithm's fields of the same names fill them.
    """

    estimator_model: ClassVar[SectionType] = GroupAdvantages
    loss_model: ClassVar[SectionType] = ClipLoss

    @property
    def estimator(self) -> Advantages | GaeConfig:
        """How advantages are made."""
        return collect_into(self.estimator_model, self)  # pyright: ignore[reportReturnType]

    @property
    def loss(self) -> PolicyLoss:
        """The loss of a token."""
        return collect_into(self.loss_model, self)  # pyright: ignore[reportReturnType]

    @property
    def terms(self) -> LossTerms:
        """What is added to the loss of a token."""
        if hasattr(self, "reward_kl"):
            names = ("entropy_coef", "nll_coef")
            return LossTerms(**{name: getattr(self, name) for name in names if hasattr(self, name)})
        return collect_into(LossTerms, self)

    @property
    def loss_kl(self) -> AdaptiveKl | None:
        """How the weight of the KL term in the loss follows its target."""
        return getattr(self, "adaptive_kl", None)

    @property
    def penalty(self) -> RewardKl:
        """The KL penalty in the reward."""
        return getattr(self, "reward_kl", RewardKl())

    @property
    def compares_siblings(self) -> bool:
        """Whether a group of one has nothing to learn from."""
        return True
