"""Losses that weigh or gate tokens instead of cutting their gradient: CISPO, SAPO, VESPO."""

import torch
from torch import Tensor

from stretto.algorithms.losses.metrics import clip_metrics, mean_of
from stretto.algorithms.losses.policy import LOG_RATIO_CLAMP, TokenLosses, clamped, log_ratio, policy_loss
from stretto.algorithms.losses.tokens import Tokens

__all__ = ["cispo", "sapo", "vespo"]


@policy_loss
def cispo(
    tokens: Tokens,
    *,
    ratio_min: float = 0.0,
    ratio_max: float = 5.0,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-A sg(clip(r, ratio_min, ratio_max)) logp``: the bounds limit the weight of a token, never its gradient to 0.

    Columns as for ``clip``. MiniMax-M1, arXiv:2506.13585, eq. 4 and 5. The bounds are of the ratio itself; some peers
    set them as distances from 1.
    """
    advantages_N = tokens.column("advantages")
    log_ratio_N = log_ratio(tokens, log_ratio_clamp).detach()
    ratio_N = log_ratio_N.exp()
    loss_N = -advantages_N * ratio_N.clamp(ratio_min, ratio_max) * tokens.policy_logprobs()
    outside_N = (ratio_N < ratio_min) | (ratio_N > ratio_max)
    return TokenLosses(loss_N=loss_N, metrics=clip_metrics(advantages_N, outside_N, log_ratio_N))


@policy_loss
def sapo(
    tokens: Tokens,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-A (4 / tau) sigmoid(tau (r - 1))``, tau = tau_pos where A > 0, else tau_neg.

    At r = 1 its gradient is that of -A r, and it fades to 0 away from there. Columns as for ``clip``.
    Gao et al. 2025, arXiv:2511.20347, eq. 6.
    """
    advantages_N = tokens.column("advantages")
    log_ratio_N = log_ratio(tokens, log_ratio_clamp)
    tau_N = _by_sign(advantages_N > 0, tau_pos, tau_neg, log_ratio_N)
    loss_N = -advantages_N * (4 / tau_N) * torch.sigmoid(tau_N * (log_ratio_N.exp() - 1))
    return TokenLosses(loss_N=loss_N, metrics={"approx_kl": mean_of(-log_ratio_N)})


@policy_loss
def vespo(
    tokens: Tokens,
    *,
    k_pos: float = 2.0,
    lam_pos: float = 3.0,
    k_neg: float = 3.0,
    lam_neg: float = 2.0,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-A sg(W) logp``, ``W = e^lam w^k e^(-lam w)`` with w the product of the row's ratios; k, lam by the sign of A.

    W is 1 at w = 1 and falls to 0 on both sides. The log-ratios of tokens and their sum are each held within
    ``log_ratio_clamp``. Columns as for ``clip``. arXiv:2602.10693, eq. 20.
    """
    advantages_N = tokens.column("advantages")
    log_ratio_N = log_ratio(tokens, log_ratio_clamp).detach()
    log_w_N = tokens.to_tokens(clamped(tokens.row_sum(log_ratio_N), log_ratio_clamp))
    positive_N = advantages_N >= 0
    k_N, lam_N = _by_sign(positive_N, k_pos, k_neg, log_w_N), _by_sign(positive_N, lam_pos, lam_neg, log_w_N)
    weight_N = (lam_N + k_N * log_w_N - lam_N * log_w_N.exp()).exp()
    metrics = {"approx_kl": mean_of(-log_ratio_N), "row_weight": mean_of(weight_N)}
    return TokenLosses(loss_N=-advantages_N * weight_N * tokens.policy_logprobs(), metrics=metrics)


def _by_sign(positive_N: Tensor, yes: float, no: float, like_N: Tensor) -> Tensor:
    """``yes`` or ``no`` for each token, in the precision of ``like_N``."""
    return torch.full_like(like_N, no).masked_fill(positive_N, yes)
