"""Settings of the algorithms: one model per ``algorithm.type``. The formulas live in ``stretto.algorithms``."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.base import Section

__all__ = ["Algorithm", "GrpoConfig", "KlKind", "PpoConfig", "Proximal", "SftConfig"]

KlKind = Literal["k1", "k2", "k3"]
Proximal = Literal["auto", "detach", "sampler"]


class SftConfig(Section):
    """Supervised fine-tuning: mean negative log-likelihood of demonstrations."""

    type: Literal["sft"] = "sft"
    """Which algorithm."""
    aggregate: Aggregation = "token_mean"
    """How token losses become one number; denominators are taken over the whole update."""


class GrpoConfig(Section):
    """Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300).

    Its eq. 3 is aggregate=seq_mean_token_mean with kl_coef=0.04; Dr. GRPO (arXiv:2503.20783) is scale=none with
    aggregate=seq_mean_token_sum.
    """

    type: Literal["grpo"] = "grpo"
    """Which algorithm."""
    scale: Literal["group_std", "none"] = "group_std"
    """What centred rewards are divided by: the group's unbiased standard deviation, or nothing."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The probability ratio is clipped above at 1 + clip_high."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL term against the frozen reference in the loss; 0 leaves the reference out."""
    kl_kind: Literal["k2", "k3"] = "k3"
    """Estimator of the KL term: k2 pulls as reverse KL, k3 as forward KL (k1 has no gradient in expectation here)."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    aggregate: Aggregation = "token_mean"
    """How token losses become one number; denominators are taken over the whole update."""
    proximal: Proximal = "auto"
    """Where the old log-probs of the ratio come from: ``detach`` (the current ones without gradient: on-policy, no clip
    acts), ``sampler`` (the engine's: corrects for stale rollouts), ``auto`` (sampler if max_staleness is not 0)."""


class PpoConfig(Section):
    """Proximal policy optimisation with a critic and GAE (Schulman et al., arXiv:1707.06347 and arXiv:1506.02438)."""

    type: Literal["ppo"] = "ppo"
    """Which algorithm."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda."""
    whiten: bool = True
    """Whether advantages are shifted and scaled to mean 0, standard deviation 1 over the batch's written tokens."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The probability ratio is clipped above at 1 + clip_high."""
    value_clip: float = Field(default=0.2, gt=0)
    """Values further than this from those of the rollout are clipped in the loss; one update per step is not."""
    kl_coef: float = Field(default=0.05, ge=0)
    """Weight of the KL penalty against the frozen reference in the reward; 0 leaves the reference out."""
    kl_kind: KlKind = "k1"
    """Estimator of the KL penalty; only k1 has the gradient of the KL in expectation here."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    aggregate: Aggregation = "token_mean"
    """How token losses become one number; denominators are taken over the whole update."""
    proximal: Proximal = "auto"
    """Where the old log-probs of the ratio come from: ``detach`` (the current ones without gradient: on-policy, no clip
    acts), ``sampler`` (the engine's: corrects for stale rollouts), ``auto`` (sampler if max_staleness is not 0)."""


Algorithm: TypeAlias = Annotated[SftConfig | GrpoConfig | PpoConfig, Field(discriminator="type")]
