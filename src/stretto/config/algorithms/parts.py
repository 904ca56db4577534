"""Settings that several algorithms have, in groups: what a named algorithm is made of.

An algorithm's fields are flat (``algorithm.clip_high``), so that a recipe says what it changes in one line. ``like``
takes a field over from the model of the estimator or the loss that reads it, with its bounds and its documentation, and
``collect_into`` gives that model its values back. Where an algorithm has a field, something reads it.
"""

import copy
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import Field, model_validator

from stretto.config.algorithms.aggregation import Aggregation, EmptyRows, check_aggregation
from stretto.config.algorithms.correction import CorrectionConfig
from stretto.config.algorithms.estimators import (
    Center,
    GaeConfig,
    GroupAdvantages,
    RewardKlKind,
    Scale,
    Singleton,
    Stabilizer,
)
from stretto.config.algorithms.losses import ClipLoss, LossTerms
from stretto.config.base import Section, documented
from stretto.config.by_step import ByStep, Rate, most

__all__ = [
    "AdaptiveKl",
    "ClipFields",
    "GaeFields",
    "GroupFields",
    "KlFields",
    "Proximal",
    "RatioFields",
    "RewardKl",
    "RewardKlFields",
    "UpdateFields",
    "UpdateSettings",
    "collect_into",
    "like",
]

S = TypeVar("S", bound=Section)

Proximal: TypeAlias = Literal["auto", "detach", "sampler", "recompute", "interpolate"]

_UNCHANGED: Any = object()


def like(model: type[Section], name: str, default: Any = _UNCHANGED) -> Any:
    """The field ``name`` of ``model``, with another default if one is given."""
    info: Any = copy.copy(documented(model)[name])
    if default is not _UNCHANGED:
        info.default = default
        info._attributes_set = {**info._attributes_set, "default": default}  # what a field is made of again
    return info


def collect_into(model: type[S], section: Section, **fixed: object) -> S:
    """A ``model`` whose fields are ``section``'s of the same names; ``fixed`` go before them."""
    names = (set(model.model_fields) - {"type"}) & set(type(section).model_fields)
    return model(**{**{name: getattr(section, name) for name in names}, **fixed})


# --- what nodes are given ------------------------------------------------------------------------------------------


class AdaptiveKl(Section):
    """A KL coefficient that follows its target: Ziegler et al. 2019, arXiv:1909.08593, section 2.2."""

    target: float = Field(gt=0)
    """The KL of a row, in nats, that the coefficient works towards."""
    horizon: int = Field(default=10_000, ge=1)
    """Rows over which the coefficient changes by about a fifth at most: a KL 20 % off its target, or more, has that."""


class RewardKl(Section):
    """A KL penalty in the reward; ``coef`` 0 is none."""

    coef: Rate = Field(default=0.0, ge=0)
    """Weight of the penalty."""
    kind: RewardKlKind = "k1"
    """Estimator of the KL of a token."""
    adaptive: AdaptiveKl | None = None
    """How the weight follows a target; null: it stays."""

    @model_validator(mode="after")
    def _there_is_a_weight(self) -> "RewardKl":
        if self.adaptive is not None and isinstance(self.coef, ByStep):
            raise ValueError(f"adaptive steers the weight of the KL penalty, and coef={self.coef} sets it by step.")
        if self.adaptive is not None and most(self.coef) == 0:
            raise ValueError("adaptive steers the weight of the KL penalty, and coef=0 leaves that out. Set coef.")
        return self


class UpdateSettings(Section):
    """How a step's batch becomes updates, and each of these a single number."""

    aggregate: Aggregation = "token_mean"
    """How token losses become one number; denominators are taken over the whole update."""
    norm: float | None = Field(default=None, gt=0)
    """The constant that token_sum_norm and seq_mean_token_sum_norm divide by."""
    empty_rows: EmptyRows = "exclude"
    """Whether rows without a token to train on count in the number of rows."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the batch."""
    minibatches: int = Field(default=1, ge=1)
    """Updates a pass is cut into, by groups."""

    @model_validator(mode="after")
    def _aggregation_reads_it(self) -> "UpdateSettings":
        check_aggregation(self.aggregate, self.norm, self.empty_rows)
        return self


# --- fields of algorithms ------------------------------------------------------------------------------------------


class ClipFields(Section):
    """Bounds of the clipped ratio."""

    clip_low: float = like(ClipLoss, "clip_low")
    clip_high: float = like(ClipLoss, "clip_high")
    dual_clip: float | None = like(ClipLoss, "dual_clip")
    ratio_max: float | None = like(ClipLoss, "ratio_max")
    log_ratio_clamp: float | None = like(ClipLoss, "log_ratio_clamp")


class GroupFields(Section):
    """How rewards are made relative to their group."""

    scale: Scale = like(GroupAdvantages, "scale")
    center: Center = like(GroupAdvantages, "center")
    epsilon: float = like(GroupAdvantages, "epsilon")
    ddof: Literal[0, 1] = like(GroupAdvantages, "ddof")
    singleton: Singleton = like(GroupAdvantages, "singleton")


class KlFields(Section):
    """A KL term in the loss."""

    kl_coef: Rate = like(LossTerms, "kl_coef")
    kl_kind: Literal["k2", "k3", "abs", "k1_st", "k3_st", "abs_st", "k3_weighted"] = like(LossTerms, "kl_kind")
    kl_gradient: Literal["value", "value_and_score"] = like(LossTerms, "kl_gradient")
    kl_clamp_in: float | None = like(LossTerms, "kl_clamp_in")
    kl_clamp_out: float | None = like(LossTerms, "kl_clamp_out")
    kl_target: float | None = Field(default=None, gt=0)
    """The KL of a row, in nats, that the weight is steered to (Ziegler et al., arXiv:1909.08593); null: it stays."""
    kl_horizon: int = like(AdaptiveKl, "horizon")
    reference_every: int | None = Field(default=None, ge=1)
    """Steps after which the reference becomes the policy as it then is; null: it stays as at the start."""

    @property
    def adaptive_kl(self) -> AdaptiveKl | None:
        """How the weight follows its target."""
        return None if self.kl_target is None else AdaptiveKl(target=self.kl_target, horizon=self.kl_horizon)

    @model_validator(mode="after")
    def _kl_is_there(self) -> "KlFields":
        _refuse_without_kl(self)
        return self


class RewardKlFields(Section):
    """A KL penalty in the reward."""

    kl_coef: Rate = Field(default=0.0, ge=0)
    """Weight of the KL penalty against the frozen reference in the reward; 0 leaves the reference out."""
    kl_kind: RewardKlKind = "k1"
    """Estimator of the KL penalty; only k1 has the gradient of the KL in expectation here."""
    kl_target: float | None = Field(default=None, gt=0)
    """The KL of a row, in nats, that the weight is steered to (Ziegler et al., arXiv:1909.08593); null: it stays."""
    kl_horizon: int = like(AdaptiveKl, "horizon")
    reference_every: int | None = Field(default=None, ge=1)
    """Steps after which the reference becomes the policy as it then is; null: it stays as at the start."""

    @property
    def reward_kl(self) -> RewardKl:
        """The penalty, as nodes are given it."""
        adaptive = None if self.kl_target is None else AdaptiveKl(target=self.kl_target, horizon=self.kl_horizon)
        return RewardKl(coef=self.kl_coef, kind=self.kl_kind, adaptive=adaptive)

    @model_validator(mode="after")
    def _kl_is_there(self) -> "RewardKlFields":
        _refuse_without_kl(self)
        return self


class RatioFields(Section):
    """Where the old log-probs of the probability ratio come from."""

    proximal: Proximal = "auto"
    """Where the old log-probs of the ratio come from: ``detach`` (the current ones without gradient: on-policy, no clip
    acts), ``sampler`` (the engine's: corrects for stale rollouts), ``recompute`` (the trainer's, before the first
    update of the step), ``interpolate`` (between these two, see proximal_alpha), ``auto`` (sampler if max_staleness is
    not 0 and no correction weighs, else recompute if the step has several updates, else detach)."""
    proximal_alpha: float | None = Field(default=None, ge=0, le=1)
    """Share of the recomputed log-probs in interpolated ones; null: 1 - 1 / s for a token of staleness s."""

    @model_validator(mode="after")
    def _alpha_is_read(self) -> "RatioFields":
        if self.proximal_alpha is not None and self.proximal != "interpolate":
            raise ValueError(
                f"proximal_alpha={self.proximal_alpha} is read by proximal=interpolate only, and proximal is "
                f"{self.proximal}. Set proximal=interpolate, or leave proximal_alpha out."
            )
        return self


class UpdateFields(Section):
    """How a batch becomes updates."""

    entropy_coef: float = like(LossTerms, "entropy_coef")
    aggregate: Aggregation = like(UpdateSettings, "aggregate")
    norm: float | None = Field(default=None, gt=0)
    """The constant that token_sum_norm and seq_mean_token_sum_norm divide by; null: sampling.max_tokens."""
    empty_rows: EmptyRows = like(UpdateSettings, "empty_rows")
    update_epochs: int = Field(default=1, ge=1)
    """Passes over a step's batch."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer updates that a pass is cut into, by groups."""
    correction: CorrectionConfig | None = None
    """Off-policy correction between batch and loss; null: none."""

    @property
    def weighs_by_ratio(self) -> bool:
        """Whether the loss of a token is multiplied by a ratio to the sampler."""
        return self.correction is not None and self.correction.weights != "none"

    @property
    def num_updates(self) -> int:
        """Optimizer updates of a step."""
        return self.update_epochs * self.minibatches

    def updates(self, max_tokens: int) -> UpdateSettings:
        """How a batch becomes updates, where completions have at most ``max_tokens`` tokens."""
        return UpdateSettings(
            aggregate=self.aggregate,
            norm=self._divisor(max_tokens),
            empty_rows=self.empty_rows,
            epochs=self.update_epochs,
            minibatches=self.minibatches,
        )

    @model_validator(mode="after")
    def _aggregation_reads_it(self) -> "UpdateFields":
        check_aggregation(self.aggregate, self._divisor(1), self.empty_rows)
        return self

    def _divisor(self, max_tokens: int) -> float | None:
        return self.norm or (float(max_tokens) if self.aggregate.endswith("_norm") else None)


class GaeFields(Section):
    """Generalised advantages."""

    gamma: float = like(GaeConfig, "gamma")
    lam: float | None = like(GaeConfig, "lam")
    length_alpha: float | None = like(GaeConfig, "length_alpha")
    lam_value: float | None = like(GaeConfig, "lam_value")
    whiten: bool = like(GaeConfig, "whiten")
    ddof: Literal[0, 1] = like(GaeConfig, "ddof")
    epsilon: float = like(GaeConfig, "epsilon")
    stabilizer: Stabilizer = like(GaeConfig, "stabilizer")


def _refuse_without_kl(section: KlFields | RewardKlFields) -> None:
    if isinstance(section.kl_coef, ByStep) and section.kl_target is not None:
        raise ValueError(
            f"kl_target={section.kl_target} steers the weight of the KL term, and kl_coef={section.kl_coef} sets it by "
            "step. Set kl_coef to the weight it begins with, or leave kl_target out."
        )
    if most(section.kl_coef) == 0 and section.kl_target is not None:
        raise ValueError(
            f"kl_target={section.kl_target} steers the weight of a KL term, and kl_coef=0 leaves that out. Set "
            "kl_coef to the weight it begins with."
        )
    for name, default in (("kl_horizon", 10_000), ("reference_every", None)):
        value = getattr(section, name)
        read = section.kl_target is not None if name == "kl_horizon" else most(section.kl_coef) > 0
        if value != default and not read:
            needs = "kl_target" if name == "kl_horizon" else "kl_coef"
            raise ValueError(f"{name}={value} is read only with {needs}. Set {needs}, or leave {name} out.")
