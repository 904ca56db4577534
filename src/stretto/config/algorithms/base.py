"""What algorithms have in common: the parts they are made of, and what they say of themselves."""

from typing import Any, ClassVar, Self, TypeAlias

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from stretto.config.algorithms.estimators import Advantages, GaeConfig, GroupAdvantages, RemaxAdvantages
from stretto.config.algorithms.losses import ClipLoss, LossTerms, PolicyLoss
from stretto.config.algorithms.parts import AdaptiveKl, RewardKl, collect_into
from stretto.config.algorithms.presets import Framework, convention_of, preset_values
from stretto.config.base import Section
from stretto.config.fields import as_mapping

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

    preset: Framework | None = None
    """Whose conventions the fields that are not set follow, where they differ; null: ours."""

    estimator_model: ClassVar[SectionType] = GroupAdvantages
    loss_model: ClassVar[SectionType] = ClipLoss

    @model_validator(mode="wrap")
    @classmethod
    def _follow_preset(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        given = as_mapping(data) or {}
        preset = given.get("preset")
        if not isinstance(preset, str):
            return handler(data)
        defaults = {name: field.get_default() for name, field in cls.model_fields.items()}
        values = preset_values(preset, str(defaults["type"]), given, defaults)
        made = handler({**given, **values})
        made.model_fields_set.difference_update(values)  # a preset's values are defaults: nobody gave them
        return made

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        """The settings of the parts are checked where they are given, not where the parts are made."""
        try:
            _ = self.estimator, self.loss
        except ValidationError as error:
            raise ValueError(str(error.errors()[0].get("ctx", {}).get("error", error))) from None
        return self

    @property
    def followed(self) -> dict[str, object]:
        """The fields that are as the preset has them, and not as our defaults."""
        if self.preset is None:
            return {}
        fields = type(self).model_fields
        names = convention_of(self.preset, self.type).settings.keys() - self.model_fields_set
        values = {name: getattr(self, name) for name in fields if name in names}
        return {name: value for name, value in values.items() if value != fields[name].get_default()}

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
    def takes_greedy(self) -> bool:
        """Whether a group has one attempt more, a greedy one, as its baseline."""
        return isinstance(self.estimator, RemaxAdvantages)

    @property
    def compares_siblings(self) -> bool:
        """Whether a group of one has nothing to learn from."""
        return True
