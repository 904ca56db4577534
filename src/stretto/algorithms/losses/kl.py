"""The KL term of a policy loss: estimates per token, with the gradient that each of them is meant to have."""

import torch
from torch import Tensor

from stretto.algorithms.names import known_names_only
from stretto.config.algorithms.losses import KlGradient, LossKlKind

__all__ = ["kl_in_loss"]


@known_names_only
def kl_in_loss(
    logprobs_N: Tensor,
    ref_logprobs_N: Tensor,
    kind: LossKlKind,
    *,
    gradient: KlGradient = "value",
    clamp_in: float | None = None,
    clamp_out: float | None = None,
    weights_N: Tensor | None = None,
) -> Tensor:
    """Estimates of KL(policy || reference) per token, with gradient. ``d = logprobs - ref_logprobs``.

    k1 d; k2 d^2/2; k3 exp(-d) - 1 + d; abs |d|: Schulman 2020, "Approximating KL divergence". ``*_st``: the value of
    that estimator with the gradient of k2 (straight through). k3_weighted: k3 times ``weights_N``, importance weights
    without gradient (left out: 1). ``clamp_in`` holds d, ``clamp_out`` the estimate before it is weighted, within
    their size; beyond, the gradient is 0. ``gradient="value_and_score"`` multiplies by exp(logp - sg(logp)): same
    value, and the score-function part is added to the gradient.

    The derivatives by ``logprobs`` are 1, d, 1 - exp(-d) and sign(d). Over tokens that the policy samples, k2 then has
    the gradient of KL(policy || reference) in expectation, k3 that of KL(reference || policy), and k1 none at all: it
    adds noise and holds nothing near (it belongs in the reward). k1 and k3 with their score-function part have that of
    KL(policy || reference); so has k3_weighted with it, over tokens of the policy that its weights are taken to, which
    is the unbiased estimate of DeepSeek-AI 2025, arXiv:2512.02556, section 3.1.
    """
    d_N = logprobs_N - ref_logprobs_N
    if clamp_in is not None:
        d_N = d_N.clamp(-clamp_in, clamp_in)
    base = kind.removesuffix("_st").removesuffix("_weighted")
    kl_N = _within(_estimate(d_N, base), clamp_out)
    if kind.endswith("_st"):
        pull_N = _within(d_N.square() / 2, clamp_out)
        kl_N = kl_N.detach() + (pull_N - pull_N.detach())
    if kind == "k3_weighted" and weights_N is not None:
        kl_N = weights_N.detach() * kl_N
    if gradient == "value_and_score":
        kl_N = kl_N * (logprobs_N - logprobs_N.detach()).exp()
    return kl_N


def _estimate(d_N: Tensor, base: str) -> Tensor:
    if base == "k1":
        return d_N
    if base == "k2":
        return d_N.square() / 2
    if base == "abs":
        return d_N.abs()
    return torch.expm1(-d_N) + d_N


def _within(values_N: Tensor, limit: float | None) -> Tensor:
    return values_N if limit is None else values_N.clamp(-limit, limit)
