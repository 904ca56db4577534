"""Settings of the policy losses, one model per ``loss.type``, and of the terms that every policy loss can have.

The formulas live in ``stretto.algorithms.losses``, whose table has each loss under its ``type``. Below, A is a token's
advantage, ``r = exp(logp - old_logp)`` its probability ratio, sg() a value without gradient, and each formula is the
loss of one token; how they become one number is the aggregation's affair.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from stretto.config.base import Section
from stretto.config.by_step import Rate
from stretto.types import LossRef, Setting

__all__ = [
    "CispoLoss",
    "ClipCovLoss",
    "ClipLoss",
    "CpgdLoss",
    "DppoKlLoss",
    "DppoTvLoss",
    "DppoTvSqLoss",
    "GmpoLoss",
    "GpgLoss",
    "GspoLoss",
    "GspoTokenLoss",
    "KlCovLoss",
    "KlGradient",
    "LossKlKind",
    "LossTerms",
    "PolicyLoss",
    "ReinforceLoss",
    "RolloutIsMaskLoss",
    "SapoLoss",
    "TvSymSqLoss",
    "VespoLoss",
    "loss_ref",
]

LossKlKind: TypeAlias = Literal["k1", "k2", "k3", "abs", "k1_st", "k3_st", "abs_st", "k3_weighted"]
"""Estimators of the KL term in the loss: see ``stretto.algorithms.losses.kl_in_loss``."""
KlGradient: TypeAlias = Literal["value", "value_and_score"]


class LossTerms(Section):
    """What is added to each token's policy loss: ``kl_coef * KL - entropy_coef * entropy``."""

    kl_coef: Rate = Field(default=0.0, ge=0)
    """Weight of the KL term against the frozen reference in the loss; 0 leaves the reference out."""
    kl_kind: LossKlKind = "k3"
    """Estimator of the KL term: k2 (and any ``_st``) pulls as reverse KL, k3 as forward KL; k1 has no gradient in
    expectation. k3_weighted, with kl_gradient=value_and_score, is the unbiased estimate of DeepSeek-V3.2
    (arXiv:2512.02556, section 3.1)."""
    kl_gradient: KlGradient = "value"
    """``value``: the estimate's own derivative. ``value_and_score``: the score-function part as well."""
    kl_clamp_in: float | None = Field(default=None, gt=0)
    """The log-ratio to the reference is held within this; null leaves it."""
    kl_clamp_out: float | None = Field(default=None, gt=0)
    """The KL estimate of a token is held within this; null leaves it."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    nll_coef: float = Field(default=0.0, ge=0)
    """Weight of the mean negative log-likelihood of right attempts (VAPO, arXiv:2504.05118, section 4.3)."""


class ClipLoss(Section):
    """PPO's clipped loss: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)).

    Schulman et al. 2017, arXiv:1707.06347, eq. 7; two bounds: DAPO, arXiv:2503.14476; ``dual_clip``: Ye et al. 2019,
    arXiv:1912.09729.
    """

    type: Literal["clip"] = "clip"
    """Which loss."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The probability ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """With a negative advantage the loss is at most -dual_clip * A; null: no such bound."""
    ratio_max: float | None = Field(default=None, gt=1)
    """The ratio itself is at most this, which bounds the loss of tokens with a negative advantage; null: no bound."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp, without gradient outside; null leaves it."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "ClipLoss":
        if self.ratio_max is not None and self.ratio_max <= 1 + self.clip_high:
            raise ValueError(
                f"ratio_max={self.ratio_max} must be above 1 + clip_high = {1 + self.clip_high}: below it, it would "
                "replace that bound. Raise ratio_max, or lower clip_high."
            )
        return self


class GspoLoss(Section):
    """Sequence ratio s = exp(mean of the row's log-ratios): max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)).

    Group sequence policy optimisation, Zheng et al. 2025, arXiv:2507.18071, eq. 5 and 7; bounds of its section 5.1.
    Made for aggregate=seq_mean_token_mean.
    """

    type: Literal["gspo"] = "gspo"
    """Which loss."""
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The sequence ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The sequence ratio is clipped above at 1 + clip_high."""
    log_ratio_max: float | None = Field(default=10.0, gt=0)
    """The sequence log-ratio is at most this, without gradient above; null leaves it."""
    mean_advantages: bool = False
    """Whether the advantages of a row are first replaced by their mean, as one of the peers does."""


class GspoTokenLoss(Section):
    """GSPO's value, with s_t = sg(s) * pi_t / sg(pi_t): each token's gradient has only its own advantage.

    Zheng et al. 2025, arXiv:2507.18071, eq. 13 and 14. Equal to gspo where a row's tokens have one advantage.
    """

    type: Literal["gspo_token"] = "gspo_token"
    """Which loss."""
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The sequence ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The sequence ratio is clipped above at 1 + clip_high."""
    log_ratio_max: float | None = Field(default=10.0, gt=0)
    """The sequence log-ratio is at most this, without gradient above; null leaves it."""


class CispoLoss(Section):
    """The ratio is a clipped weight without gradient: -A sg(clip(r, ratio_min, ratio_max)) logp.

    MiniMax-M1, arXiv:2506.13585, eq. 4 and 5. It sets no lower bound and does not state the upper one; Khatri et al.
    2025 (ScaleRL, arXiv:2510.13786, appendix A.17) found no difference between 4, 5 and 8.
    """

    type: Literal["cispo"] = "cispo"
    """Which loss."""
    ratio_min: float = Field(default=0.0, ge=0, le=1)
    """Lower bound of the ratio itself (not a distance from 1)."""
    ratio_max: float = Field(default=5.0, ge=1)
    """Upper bound of the ratio itself (not a distance from 1)."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp; null leaves it."""


class SapoLoss(Section):
    """A soft gate instead of a clip: -A (4 / tau) sigmoid(tau (r - 1)), tau_pos where A > 0, else tau_neg.

    Soft adaptive policy optimisation, Gao et al. 2025, arXiv:2511.20347, eq. 6; temperatures of its section 5.1.
    """

    type: Literal["sapo"] = "sapo"
    """Which loss."""
    tau_pos: float = Field(default=1.0, gt=0)
    """Temperature of the gate for positive advantages."""
    tau_neg: float = Field(default=1.05, gt=0)
    """Temperature of the gate for the others; higher falls off faster."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp, without gradient outside; null leaves it."""


class GmpoLoss(Section):
    """Geometric mean of the row's clipped ratios, one value per row: -mean(A) exp(mean of clipped log-ratios).

    Geometric-mean policy optimisation, Zhao et al. 2025, arXiv:2507.20673, eq. 4. Each token carries its row's value:
    aggregate=seq_mean_token_mean is the mean over rows.
    """

    type: Literal["gmpo"] = "gmpo"
    """Which loss."""
    log_clip_low: float = Field(default=0.4, gt=0)
    """The log-ratio is clipped below at -log_clip_low (where the advantage makes that the larger loss)."""
    log_clip_high: float = Field(default=0.4, gt=0)
    """The log-ratio is clipped above at log_clip_high."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this first, without gradient outside; null leaves it."""


class GpgLoss(Section):
    """The plain policy gradient: -A logp, without a ratio.

    Group policy gradient, Chu et al. 2025, arXiv:2504.02546.
    """

    type: Literal["gpg"] = "gpg"
    """Which loss."""


class CpgdLoss(Section):
    """-A min(logp, old_logp + log(1 + clip_high)) where A > 0, else -A max(logp, old_logp + log(1 - clip_low)).

    Clipped policy gradient optimisation with policy drift, Liu et al. 2025, arXiv:2505.12504, eq. 2.
    """

    type: Literal["cpgd"] = "cpgd"
    """Which loss."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """With a negative advantage the log-prob has no gradient below old_logp + log(1 - clip_low)."""
    clip_high: float = Field(default=0.2, gt=0)
    """With a positive advantage the log-prob has no gradient above old_logp + log(1 + clip_high)."""
    drift_coef: float = Field(default=0.0, ge=0)
    """Weight of the drift term, the estimate r - 1 - log r of KL(old || policy); 0 leaves it out."""
    drift_max: float | None = Field(default=None, gt=0)
    """Largest derivative of the drift term by logp, which is r - 1 below; null: no bound."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio of the drift term is held within this before exp; null leaves it."""


class ClipCovLoss(Section):
    """PPO's clipped loss without some tokens of high covariance between log-prob and advantage, drawn at random.

    Cui et al. 2025, arXiv:2505.22617 (Clip-Cov). The tokens are chosen once over the whole batch, before the update.
    The authors' runs have both bounds at 1, which leaves nearly all of the clipping to the choice of tokens.
    """

    type: Literal["clip_cov"] = "clip_cov"
    """Which loss."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """The probability ratio is clipped below at 1 - clip_low; 1 is no bound."""
    clip_high: float = Field(default=0.2, gt=0)
    """The probability ratio is clipped above at 1 + clip_high."""
    cov_min: float = 1.0
    """Only tokens with a covariance above this can be dropped."""
    cov_max: float = 5.0
    """Only tokens with a covariance below this can be dropped."""
    max_fraction: float = Field(default=2e-4, gt=0, le=1)
    """At most this share of the batch's tokens is dropped (at least one, where one is within the bounds)."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp, without gradient outside; null leaves it."""


class KlCovLoss(Section):
    """-A r, plus cov_coef |logp - old_logp| on the tokens of highest covariance between log-prob and advantage.

    Cui et al. 2025, arXiv:2505.22617 (KL-Cov). The tokens are chosen once over the whole batch, before the update.
    """

    type: Literal["kl_cov"] = "kl_cov"
    """Which loss."""
    top_fraction: float = Field(default=2e-3, gt=0, le=1)
    """Share of the batch's tokens that are penalised, at least one."""
    cov_coef: float = Field(default=1.0, ge=0)
    """Weight of the penalty on those tokens."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp, without gradient outside; null leaves it."""


class DppoTvLoss(Section):
    """-A r against the sampler, without tokens whose probability moved too far: up by delta_high, down by delta_low.

    Divergence PPO with the binary total variation, Qi et al. 2026, arXiv:2602.04879; bounds of its appendix C (most of
    its larger runs have 0.2). The up side matters where A > 0, the down side elsewhere. Ratio and bound are both
    against the sampler's log-probs.
    """

    type: Literal["dppo_tv"] = "dppo_tv"
    """Which loss."""
    delta_low: float = Field(default=0.15, gt=0, le=1)
    """With a negative advantage, how far a token's probability may have fallen."""
    delta_high: float = Field(default=0.15, gt=0, le=1)
    """With a positive advantage, how far a token's probability may have risen."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp, without gradient outside; null leaves it."""


class DppoKlLoss(Section):
    """-A r against the sampler, without tokens that moved the way A pushes by more than a binary KL of delta.

    Divergence PPO with the binary KL of (token, any other token), Qi et al. 2026, arXiv:2602.04879; bounds of its
    appendix C.
    """

    type: Literal["dppo_kl"] = "dppo_kl"
    """Which loss."""
    delta_low: float = Field(default=0.05, gt=0)
    """With a negative advantage, the largest KL(sampler || policy) of a token whose probability fell, in nats."""
    delta_high: float = Field(default=0.05, gt=0)
    """With a positive advantage, the largest KL(sampler || policy) of a token whose probability rose, in nats."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp, without gradient outside; null leaves it."""


class DppoTvSqLoss(Section):
    """dppo_tv with advantages scaled by adv_scale, plus sq_coef (log r)^2 on every token.

    The mask of arXiv:2602.04879 with a quadratic pull to the sampler, as prime-rl trains by default.
    """

    type: Literal["dppo_tv_sq"] = "dppo_tv_sq"
    """Which loss."""
    delta_low: float = Field(default=0.2, gt=0, le=1)
    """With a negative advantage, how far a token's probability may have fallen."""
    delta_high: float = Field(default=0.2, gt=0, le=1)
    """With a positive advantage, how far a token's probability may have risen."""
    adv_scale: float = Field(default=1.0, gt=0)
    """What advantages are multiplied by."""
    sq_coef: float = Field(default=1e-3, ge=0)
    """Weight of the squared log-ratio, which masked tokens have too."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this, without gradient outside; null leaves it."""


class TvSymSqLoss(Section):
    """dppo_tv_sq with one bound: a token whose probability moved by more than delta either way is left out.

    prime-rl's ``ipo`` loss; it is not the IPO of preference optimisation.
    """

    type: Literal["tv_sym_sq"] = "tv_sym_sq"
    """Which loss."""
    delta: float = Field(default=0.1, gt=0, le=1)
    """How far a token's probability may have moved, up or down."""
    adv_scale: float = Field(default=1.0, gt=0)
    """What advantages are multiplied by."""
    sq_coef: float = Field(default=1e-3, ge=0)
    """Weight of the squared log-ratio, which masked tokens have too."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this, without gradient outside; null leaves it."""


class RolloutIsMaskLoss(Section):
    """-A sg(w) logp with w the ratio to the sampler, and 0 for a token whose w is not inside (ratio_min, ratio_max).

    The bounds are those of IcePop (Ling team 2025, arXiv:2510.18855), where they mask the gap between engines.
    """

    type: Literal["rollout_is_mask"] = "rollout_is_mask"
    """Which loss."""
    ratio_min: float = Field(default=0.5, ge=0, lt=1)
    """A token is left out if its ratio to the sampler is not above this."""
    ratio_max: float = Field(default=5.0, gt=1)
    """A token is left out if its ratio to the sampler is not below this."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp; null leaves it."""


class VespoLoss(Section):
    """-A sg(W) logp, W = e^lam w^k e^(-lam w), w the product of the row's ratios; lam, k by the sign of A.

    Variational sequence-level soft policy optimisation, arXiv:2602.10693, eq. 20; settings of its section 4.1. W is 1
    at w = 1.
    """

    type: Literal["vespo"] = "vespo"
    """Which loss."""
    k_pos: float = Field(default=2.0, ge=0)
    """The power k where A >= 0."""
    lam_pos: float = Field(default=3.0, gt=0)
    """The rate lam where A >= 0."""
    k_neg: float = Field(default=3.0, ge=0)
    """The power k where A < 0."""
    lam_neg: float = Field(default=2.0, gt=0)
    """The rate lam where A < 0."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratios of tokens, and their sum over a row, are held within this; null leaves them."""


class ReinforceLoss(Section):
    """REINFORCE with importance sampling: -A sg(r) logp, r at most ratio_max.

    Williams 1992 (Machine Learning 8, 229-256) for samples of an older policy; its gradient is that of -A r.
    """

    type: Literal["reinforce"] = "reinforce"
    """Which loss."""
    ratio_max: float | None = Field(default=None, ge=1)
    """The ratio is at most this (truncated importance sampling); null: no bound."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """The log-ratio is held within this before exp; null leaves it."""


PolicyLoss: TypeAlias = Annotated[
    ClipLoss
    | GspoLoss
    | GspoTokenLoss
    | CispoLoss
    | SapoLoss
    | GmpoLoss
    | GpgLoss
    | CpgdLoss
    | ClipCovLoss
    | KlCovLoss
    | DppoTvLoss
    | DppoKlLoss
    | DppoTvSqLoss
    | TvSymSqLoss
    | RolloutIsMaskLoss
    | VespoLoss
    | ReinforceLoss,
    Field(discriminator="type"),
]
"""The policy losses by ``type``."""

_SELECTION = frozenset({"cov_min", "cov_max", "max_fraction", "top_fraction"})
"""Settings of the choice of tokens, which is made over the whole batch and not in the loss."""


def loss_ref(loss: PolicyLoss, terms: LossTerms = LossTerms()) -> LossRef:
    """The LossRef of a policy loss with its settings and those of the common terms, for ``Train.learn``.

    What chooses tokens for clip_cov and kl_cov is not among them: ``stretto.algorithms.covariance`` reads it.
    """
    settings: Mapping[str, Setting] = {**loss.model_dump(exclude={"type", *_SELECTION}), **terms.model_dump()}
    return LossRef(use=loss.type, settings=settings)
