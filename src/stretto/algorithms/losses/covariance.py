"""Clip-Cov and KL-Cov: losses that treat some tokens of high covariance apart.

Which tokens those are is a matter of the whole batch, so it is settled before the update and comes as the column
``selected`` (``stretto.algorithms.covariance``): micro-batches change nothing.
"""

from stretto.algorithms.losses.metrics import clip_metrics, mean_of
from stretto.algorithms.losses.policy import LOG_RATIO_CLAMP, TokenLosses, log_ratio, policy_loss
from stretto.algorithms.losses.ratio import clipped_loss
from stretto.algorithms.losses.tokens import Tokens

__all__ = ["clip_cov", "kl_cov"]


@policy_loss
def clip_cov(
    tokens: Tokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    log_ratio_clamp: float | None = LOG_RATIO_CLAMP,
) -> TokenLosses:
    """The loss of ``clip``, and 0 for the tokens that the column ``selected`` marks with 1.

    The denominators keep those tokens. Columns as for ``clip``, and ``selected``. Cui et al. 2025, arXiv:2505.22617.
    """
    advantages_N, selected_N = tokens.column("advantages"), tokens.column("selected")
    log_ratio_N = log_ratio(tokens, log_ratio_clamp)
    loss_N, hit_N = clipped_loss(advantages_N, log_ratio_N.exp(), clip_low, clip_high)
    metrics = {**clip_metrics(advantages_N, hit_N, log_ratio_N), "dropped_frac": mean_of(selected_N)}
    return TokenLosses(loss_N=(1 - selected_N) * loss_N, metrics=metrics)


@policy_loss
def kl_cov(tokens: Tokens, *, cov_coef: float = 1.0, log_ratio_clamp: float | None = LOG_RATIO_CLAMP) -> TokenLosses:
    """``-A r``, plus ``cov_coef |logp - old_logp|`` on the tokens that the column ``selected`` marks with 1; no clip.

    Columns as for ``clip``, and ``selected``. Cui et al. 2025, arXiv:2505.22617.
    """
    advantages_N, selected_N = tokens.column("advantages"), tokens.column("selected")
    log_ratio_N = log_ratio(tokens, log_ratio_clamp)
    loss_N = -advantages_N * log_ratio_N.exp() + cov_coef * selected_N * log_ratio_N.abs()
    metrics = {"approx_kl": mean_of(-log_ratio_N), "penalised_frac": mean_of(selected_N)}
    return TokenLosses(loss_N=loss_N, metrics=metrics)
