"""Losses on the log-prob itself: likelihood, the plain policy gradient, REINFORCE with weights, and CPGD."""

import math

import torch
from torch import Tensor

from stretto.algorithms.losses.metrics import clip_metrics, mean_of, policy_metrics, total_of
from stretto.algorithms.losses.policy import LOG_RATIO_CLAMP, TokenLosses, clamped, log_ratio, policy_loss
from stretto.algorithms.losses.tokens import LossOutput, Tokens

__all__ = ["cpgd", "gpg", "reinforce", "sft"]


def sft(tokens: Tokens) -> LossOutput:
    """Negative log-likelihood of the written tokens."""
    kept = tokens.trained()
    total = kept.weighted_sum(-kept.policy_logprobs())
    return LossOutput(total=total, metrics={**policy_metrics(tokens), "loss": total_of(total)})


@policy_loss
def gpg(tokens: Tokens) -> TokenLosses:
    """``-A logp``, without a ratio. Column: ``advantages``. Chu et al. 2025, arXiv:2504.02546."""
    return TokenLosses(loss_N=-tokens.column("advantages") * tokens.policy_logprobs(), metrics={})


@policy_loss
def reinforce(
    tokens: Tokens, *, ratio_max: float | None = None, log_ratio_clamp: float | None = LOG_RATIO_CLAMP
) -> TokenLosses:
    """``-A sg(min(r, ratio_max)) logp``: REINFORCE (Williams 1992) on samples of an older policy.

    Its gradient is that of ``-A r`` where r is below ``ratio_max``. Columns as for ``clip``.
    """
    advantages_N = tokens.column("advantages")
    log_ratio_N = log_ratio(tokens, log_ratio_clamp).detach()
    ratio_N = log_ratio_N.exp()
    limit = math.inf if ratio_max is None else ratio_max
    loss_N = -advantages_N * ratio_N.clamp(max=limit) * tokens.policy_logprobs()
    return TokenLosses(loss_N=loss_N, metrics=clip_metrics(advantages_N, ratio_N > limit, log_ratio_N))


@policy_loss
def cpgd(
    tokens: Tokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    drift_coef: float = 0.0,
    drift_max: float | None = None,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-A min(logp, old_logp + log(1 + clip_high))`` where A > 0, else ``-A max(logp, old_logp + log(1 - clip_low))``.

    Liu et al. 2025, arXiv:2505.12504, eq. 2, whose loss has log r in the place of the log-prob: its value differs by
    what has no gradient. ``drift_coef`` weighs its policy drift, the estimate ``r - 1 - log r`` of KL(old || policy)
    with the log-ratio held within ``log_ratio_clamp``. Its derivative by logp is ``r - 1``, and at most ``drift_max``
    (c in the paper): beyond r = 1 + drift_max the drift goes on along its tangent in log r, and so still pulls
    back. Columns as for ``clip``.
    """
    advantages_N = tokens.column("advantages")
    logprobs_N, old_N = tokens.policy_logprobs(), tokens.old_logprobs()
    held_N = torch.where(
        advantages_N > 0,
        torch.minimum(logprobs_N, old_N + math.log1p(clip_high)),
        torch.maximum(logprobs_N, old_N + math.log1p(-clip_low)),
    )
    loss_N = -advantages_N * held_N
    metrics = clip_metrics(advantages_N, loss_N > -advantages_N * logprobs_N, logprobs_N - old_N)
    if drift_coef:
        drift_N = _drift(logprobs_N - old_N, drift_max, log_ratio_clamp)
        metrics["drift"] = mean_of(drift_N)
        loss_N = loss_N + drift_coef * drift_N
    return TokenLosses(loss_N=loss_N, metrics=metrics)


def _drift(log_ratio_N: Tensor, drift_max: float | None, log_ratio_clamp: float | None) -> Tensor:
    """``r - 1 - log r`` [N], and its tangent where r is above 1 + drift_max."""
    held_N = clamped(log_ratio_N, log_ratio_clamp)
    if drift_max is None:
        return torch.expm1(held_N) - held_N
    bound = math.log1p(drift_max)
    held_N = held_N.clamp(max=bound)
    return torch.expm1(held_N) - held_N + drift_max * (log_ratio_N - bound).clamp(min=0)
