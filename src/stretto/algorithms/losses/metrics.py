"""Metrics of losses: sums and counts over the tokens of a micro-batch, which add up to those of the update."""

import torch
from torch import Tensor

from stretto.algorithms.losses.tokens import Tokens
from stretto.types import Metric, Metrics

__all__ = ["clip_metrics", "mean_of", "policy_metrics", "total_of", "with_ess"]

GAP_LIMIT = 20.0
"""Sampler ratios are taken of log-ratios within this."""


def mean_of(values_N: Tensor) -> Metric:
    """The mean over tokens."""
    return Metric("mean", values_N.detach().sum(dtype=torch.float64).item(), len(values_N))


def total_of(total: Tensor) -> Metric:
    """A scalar that adds up."""
    return Metric("sum", total.item())


def clip_metrics(advantages_N: Tensor, hit_N: Tensor, log_ratio_N: Tensor) -> dict[str, Metric]:
    """Shares of tokens that a bound acts on (all, A < 0, A > 0), and ``approx_kl``, the mean of old_logp - logp."""
    return {
        "clip_frac": mean_of(hit_N),
        "clip_low": mean_of(hit_N & (advantages_N < 0)),
        "clip_high": mean_of(hit_N & (advantages_N > 0)),
        "approx_kl": mean_of(-log_ratio_N),
    }


def policy_metrics(tokens: Tokens) -> dict[str, Metric]:
    """Entropy, and how far the trainer's log-probs are from the sampler's, over the tokens that an engine sampled."""
    metrics: dict[str, Metric] = {}
    if tokens.entropy_N is not None:
        metrics["entropy"] = mean_of(tokens.entropy_N)
    gap_N = (tokens.policy_logprobs().detach().double() - tokens.sampler_logprobs_N.double())[tokens.sampled_N]
    if len(gap_N):
        ratio_N = gap_N.clamp(-GAP_LIMIT, GAP_LIMIT).exp()
        metrics["sampler_gap"] = mean_of(gap_N.abs())
        metrics["sampler_gap_max"] = Metric("max", gap_N.abs().max().item())
        metrics["sampler_ratio"] = mean_of(ratio_N)
        metrics["sampler_ratio_square"] = mean_of(ratio_N.square())
    return metrics


def with_ess(metrics: Metrics) -> dict[str, Metric]:
    """``metrics`` of a whole update, with ``ess`` from the sampler ratios ``w = exp(trainer - sampler)``.

    The effective sample size as a share of the N sampled tokens, ``(sum w)^2 / (N sum w^2)`` (Kong 1992). It is not a
    sum over tokens, so it is taken from its two parts once they are whole.
    """
    out = dict(metrics)
    square = out.pop("sampler_ratio_square", None)
    if square is not None:
        out["ess"] = Metric("mean", out["sampler_ratio"].value ** 2 / square.value * square.count, square.count)
    return out
