"""PPO's clipped loss, with its bounds on the other side: dual clip and a cap of the ratio itself."""

import torch
from torch import Tensor

from stretto.algorithms.losses.metrics import clip_metrics, mean_of
from stretto.algorithms.losses.policy import LOG_RATIO_CLAMP, TokenLosses, log_ratio, policy_loss
from stretto.algorithms.losses.tokens import Tokens

__all__ = ["clip", "clipped_loss"]


def clipped_loss(
    advantages_N: Tensor, ratio_N: Tensor, clip_low: float, clip_high: float, ratio_max: float | None = None
) -> tuple[Tensor, Tensor]:
    """``max(-A min(r, ratio_max), -A clip(r, 1 - clip_low, 1 + clip_high))`` [N], and where the bound acts.

    On a tie the gradient is that of the plain one.
    """
    plain_N = -advantages_N * (ratio_N if ratio_max is None else ratio_N.clamp(max=ratio_max))
    bound_N = -advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)
    hit_N = bound_N > plain_N
    return torch.where(hit_N, bound_N, plain_N), hit_N


@policy_loss
def clip(
    tokens: Tokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio_max: float | None = None,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """The clipped policy loss ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``, ``r = exp(logp - old_logp)``.

    Columns: ``advantages``; ``old_logprobs`` (left out: the current ones without gradient, so r is 1 and neither bound
    acts). Schulman et al. 2017, arXiv:1707.06347, eq. 7; two bounds: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 10.

    Both bounds leave the loss of a token with A < 0 unbounded as r grows. ``dual_clip``: there it is at most
    ``-dual_clip * A`` (Ye et al. 2019, arXiv:1912.09729). ``ratio_max``: r itself is at most this before the maximum
    is taken (two-sided clipping). The log-ratio is held within ``log_ratio_clamp`` before exp, with no gradient
    outside.
    """
    advantages_N = tokens.column("advantages")
    log_ratio_N = log_ratio(tokens, log_ratio_clamp)
    loss_N, hit_N = clipped_loss(advantages_N, log_ratio_N.exp(), clip_low, clip_high, ratio_max)
    metrics = clip_metrics(advantages_N, hit_N, log_ratio_N)
    if dual_clip is not None:
        limit_N = -dual_clip * advantages_N
        lower_N = (advantages_N < 0) & (loss_N > limit_N)
        metrics["clip_lower"] = mean_of(lower_N)
        loss_N = torch.where(lower_N, limit_N, loss_N)
    return TokenLosses(loss_N=loss_N, metrics=metrics)
