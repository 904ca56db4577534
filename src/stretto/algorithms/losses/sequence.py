"""Losses whose ratio belongs to a whole row: GSPO, its per-token form, and GMPO. A row is a trajectory (part)."""

import torch

from stretto.algorithms.losses.metrics import clip_metrics
from stretto.algorithms.losses.policy import LOG_RATIO_CLAMP, TokenLosses, log_ratio, policy_loss
from stretto.algorithms.losses.ratio import clipped_loss
from stretto.algorithms.losses.tokens import Tokens

__all__ = ["gmpo", "gspo", "gspo_token"]

LOG_RATIO_MAX = 10.0


@policy_loss
def gspo(
    tokens: Tokens,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    log_ratio_max: float | None = LOG_RATIO_MAX,
    mean_advantages: bool = False,
) -> TokenLosses:
    """``max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high))`` with the row's ratio ``s = exp(mean of logp - old_logp)``.

    Columns as for ``clip``. Zheng et al. 2025, arXiv:2507.18071, eq. 5 and 7, where it is averaged over rows
    (seq_mean_token_mean). The gradient goes through s to every token of the row. The sequence log-ratio is at most
    ``log_ratio_max``. ``mean_advantages``: A is first averaged over the row; peers differ in that, and it matters only
    where advantages vary within a row.
    """
    advantages_N = tokens.column("advantages")
    if mean_advantages:
        advantages_N = tokens.to_tokens(tokens.row_mean(advantages_N))
    log_ratio_N = log_ratio(tokens, None)
    ratio_N = tokens.to_tokens(tokens.row_mean(log_ratio_N)).clamp(max=_or_inf(log_ratio_max)).exp()
    loss_N, hit_N = clipped_loss(advantages_N, ratio_N, clip_low, clip_high)
    return TokenLosses(loss_N=loss_N, metrics=clip_metrics(advantages_N, hit_N, log_ratio_N))


@policy_loss
def gspo_token(
    tokens: Tokens,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    log_ratio_max: float | None = LOG_RATIO_MAX,
) -> TokenLosses:
    """GSPO's value with ``s_t = sg(s) pi_t / sg(pi_t)``: the gradient of a token has only its own advantage.

    Columns as for ``clip``. Zheng et al. 2025, arXiv:2507.18071, eq. 13 and 14. Where a row's tokens share one
    advantage, and a mean over the row is taken, it is ``gspo``.
    """
    advantages_N = tokens.column("advantages")
    logprobs_N = tokens.policy_logprobs()
    log_ratio_N = log_ratio(tokens, None)
    sequence_N = tokens.to_tokens(tokens.row_mean(log_ratio_N)).detach() + (logprobs_N - logprobs_N.detach())
    ratio_N = sequence_N.clamp(max=_or_inf(log_ratio_max)).exp()
    loss_N, hit_N = clipped_loss(advantages_N, ratio_N, clip_low, clip_high)
    return TokenLosses(loss_N=loss_N, metrics=clip_metrics(advantages_N, hit_N, log_ratio_N))


@policy_loss
def gmpo(
    tokens: Tokens,
    *,
    log_clip_low: float = 0.4,
    log_clip_high: float = 0.4,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """``-mean(A) exp(mean of clipped log-ratios)`` of the row, on each of its tokens: the geometric mean of the ratios.

    With ``d = logp - old_logp``, a token with A > 0 counts min(d, clip(d)), one with A < 0 max(d, clip(d)), clip to
    [-log_clip_low, log_clip_high]; A = 0 counts 0. Columns as for ``clip``. Zhao et al. 2025, arXiv:2507.20673, eq. 4.
    Every token carries its row's value, so the aggregation seq_mean_token_mean gives the mean over rows. The column
    ``correction`` enters by its geometric mean over the row, so one token of weight 0 takes the whole row out.
    """
    advantages_N = tokens.column("advantages")
    d_N = log_ratio(tokens, log_ratio_clamp)
    held_N = d_N.clamp(-log_clip_low, log_clip_high)
    sign_N = advantages_N.sign()
    counted_N = sign_N * torch.minimum(sign_N * d_N, sign_N * held_N)
    value_R = -tokens.row_mean(advantages_N) * tokens.row_mean(counted_N).exp()
    if "correction" in tokens.columns:
        value_R = value_R * tokens.row_mean(tokens.columns["correction"].log()).exp()
    metrics = clip_metrics(advantages_N, d_N != held_N, d_N)
    return TokenLosses(loss_N=tokens.to_tokens(value_R), metrics=metrics, corrected=True)


def _or_inf(limit: float | None) -> float:
    return float("inf") if limit is None else limit
