"""Losses whose trust region is a divergence from the sampler: Divergence PPO and its relatives.

The ratio is to the sampler's own log-probs, not to ``old_logprobs``: ``w = exp(logp - sampler_logp)``. A token outside
the region has no policy gradient.
"""

import torch
from torch import Tensor

from stretto.algorithms.losses.metrics import clip_metrics
from stretto.algorithms.losses.policy import LOG_RATIO_CLAMP, TokenLosses, clamped, policy_loss
from stretto.algorithms.losses.tokens import Tokens

__all__ = ["dppo_kl", "dppo_tv", "dppo_tv_sq", "rollout_is_mask", "tv_sym_sq"]

NEARLY_ONE = 1 - 1e-12


@policy_loss
def dppo_tv(
    tokens: Tokens,
    *,
    delta_low: float = 0.15,
    delta_high: float = 0.15,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-A w``, and 0 where the token's probability rose by over delta_high (A > 0) or fell by over delta_low (else).

    |pi - mu| of the sampled token is the total variation between (token, any other token) under policy and sampler.
    Column: ``advantages``. Qi et al. 2026, arXiv:2602.04879 (binary TV).
    """
    outside_N = _moved(tokens, delta_low, delta_high)
    return _masked(tokens, outside_N, log_ratio_clamp)


@policy_loss
def dppo_kl(
    tokens: Tokens,
    *,
    delta_low: float = 0.05,
    delta_high: float = 0.05,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-A w``, and 0 where the token moved the way A pushes and the binary KL of that is above its delta.

    KL = mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi)) of the sampled token, mu the sampler. delta_high holds
    where A > 0 and pi rose, delta_low elsewhere where it fell. Column: ``advantages``. Qi et al. 2026,
    arXiv:2602.04879 (binary KL).
    """
    pi_N, mu_N = (p.clamp(max=NEARLY_ONE) for p in _probabilities(tokens))
    kl_N = mu_N * (mu_N.log() - pi_N.log()) + (1 - mu_N) * (torch.log1p(-mu_N) - torch.log1p(-pi_N))
    up_N = tokens.column("advantages") > 0
    outside_N = torch.where(up_N, (pi_N > mu_N) & (kl_N > delta_high), (pi_N < mu_N) & (kl_N > delta_low))
    return _masked(tokens, outside_N, log_ratio_clamp)


@policy_loss
def dppo_tv_sq(
    tokens: Tokens,
    *,
    delta_low: float = 0.2,
    delta_high: float = 0.2,
    adv_scale: float = 1.0,
    sq_coef: float = 1e-3,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """The mask of ``dppo_tv`` on ``-adv_scale A w``, plus ``sq_coef (log w)^2`` on every token, masked ones too.

    Column: ``advantages``. prime-rl's default; the mask is arXiv:2602.04879's.
    """
    outside_N = _moved(tokens, delta_low, delta_high)
    return _masked(tokens, outside_N, log_ratio_clamp, adv_scale=adv_scale, sq_coef=sq_coef)


@policy_loss
def tv_sym_sq(
    tokens: Tokens,
    *,
    delta: float = 0.1,
    adv_scale: float = 1.0,
    sq_coef: float = 1e-3,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``dppo_tv_sq`` with one bound: 0 where the token's probability moved by more than ``delta`` either way.

    Column: ``advantages``. prime-rl's ``ipo``, which is not the IPO of preference optimisation.
    """
    pi_N, mu_N = _probabilities(tokens)
    return _masked(tokens, (pi_N - mu_N).abs() > delta, log_ratio_clamp, adv_scale=adv_scale, sq_coef=sq_coef)


@policy_loss
def rollout_is_mask(
    tokens: Tokens,
    *,
    ratio_min: float = 0.5,
    ratio_max: float = 5.0,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-A sg(w) logp`` where ``ratio_min < w < ratio_max``, else 0.

    Column: ``advantages``. The interval is that of IcePop, arXiv:2510.18855.
    """
    advantages_N = tokens.column("advantages")
    log_ratio_N = _log_ratio_to_sampler(tokens, log_ratio_clamp).detach()
    ratio_N = log_ratio_N.exp()
    inside_N = (ratio_N > ratio_min) & (ratio_N < ratio_max)
    loss_N = torch.where(inside_N, -advantages_N * ratio_N, 0.0) * tokens.policy_logprobs()
    return TokenLosses(loss_N=loss_N, metrics=clip_metrics(advantages_N, ~inside_N, log_ratio_N))


def _masked(
    tokens: Tokens, outside_N: Tensor, log_ratio_clamp: float | None, *, adv_scale: float = 1.0, sq_coef: float = 0.0
) -> TokenLosses:
    advantages_N = tokens.column("advantages")
    log_ratio_N = _log_ratio_to_sampler(tokens, log_ratio_clamp)
    loss_N = torch.where(outside_N, 0.0, -adv_scale * advantages_N * log_ratio_N.exp())
    if sq_coef:
        loss_N = loss_N + sq_coef * log_ratio_N.square()
    return TokenLosses(loss_N=loss_N, metrics=clip_metrics(advantages_N, outside_N, log_ratio_N))


def _log_ratio_to_sampler(tokens: Tokens, clamp: float | None) -> Tensor:
    return clamped(tokens.policy_logprobs() - tokens.sampler_logprobs_N, clamp)


def _probabilities(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Of each written token under the policy and under the sampler [N], float64, without gradient."""
    return tokens.policy_logprobs().detach().double().exp(), tokens.sampler_logprobs_N.double().exp()


def _moved(tokens: Tokens, delta_low: float, delta_high: float) -> Tensor:
    """Whether a token's probability rose too far (A > 0) or fell too far (elsewhere) [N]."""
    pi_N, mu_N = _probabilities(tokens)
    return torch.where(tokens.column("advantages") > 0, pi_N - mu_N > delta_high, mu_N - pi_N > delta_low)
