"""Losses: what one micro-batch adds to the objective, as a plain sum over its written tokens.

N is the number of tokens the policy wrote in the micro-batch; nothing else reaches a loss, so there are no masks here.
``weights_N`` already carries every denominator of the update (``aggregation_weights``): a loss returns
``sum(weights_N * loss_N)`` and never a mean, and the sum over all micro-batches is the objective.

A loss of one's own is a function ``loss(tokens: Tokens, *, setting=default, ...) -> LossOutput``, named
``module:function`` in a LossRef, whose settings become its keyword arguments:

    def unlikelihood(tokens: Tokens, *, scale: float = 1.0) -> LossOutput:
        loss_N = scale * tokens.column("advantages") * tokens.policy_logprobs().neg()
        return LossOutput(total=tokens.weighted_sum(loss_N), metrics={})
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from stretto.config.algorithms import KlKind
from stretto.errors import ConfigError, nearest
from stretto.imports import find_named, is_named
from stretto.types import LossRef, Metric, Metrics

__all__ = [
    "LOSSES",
    "Loss",
    "LossOutput",
    "Tokens",
    "kl_in_loss",
    "policy_clip",
    "resolve_loss",
    "sft",
    "value_clip",
    "with_ess",
]

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """The written tokens of one micro-batch, N of them, in key order.

    A Model with a value head gives ``values_N``; any other ``logprobs_N`` and ``entropy_N``. These carry gradient.
    ``sampler_logprobs_N`` are those of the engine; ``sampled_N`` is False for tokens of demonstrations, which no engine
    sampled. ``columns`` are the per-token Columns that were passed, by name.
    """

    weights_N: Tensor
    sampler_logprobs_N: Tensor
    sampled_N: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    logprobs_N: Tensor | None = None
    entropy_N: Tensor | None = None
    values_N: Tensor | None = None

    def column(self, name: str) -> Tensor:
        """The Column ``name`` [N]. ConfigError if it was not passed."""
        if name not in self.columns:
            raise ConfigError(
                f"the loss needs the column {name!r}, and it was not passed to the update.{nearest(name, self.columns)}"
            )
        return self.columns[name]

    def policy_logprobs(self) -> Tensor:
        """The Model's log-probs [N], with gradient. ConfigError on a Model with a value head."""
        if self.logprobs_N is None:
            raise ConfigError("the loss needs log-probs, and the Model has a value head. Train a policy with it.")
        return self.logprobs_N

    def critic_values(self) -> Tensor:
        """The Model's values [N], with gradient. ConfigError on a Model without a value head."""
        if self.values_N is None:
            raise ConfigError("the loss needs values, and the Model has no value head. Train a critic with it.")
        return self.values_N

    def weighted_sum(self, loss_N: Tensor) -> Tensor:
        """``sum(weights_N * loss_N)``, the only reduction a loss needs."""
        return (self.weights_N * loss_N).sum()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossOutput:
    """``total`` is the scalar to differentiate; ``metrics`` add up over micro-batches."""

    total: Tensor
    metrics: Metrics


Loss: TypeAlias = Callable[..., object]
"""``loss(tokens, **settings)``, which gives a LossOutput or a scalar tensor; ``resolve_loss`` binds the settings."""


def sft(tokens: Tokens) -> LossOutput:
    """Negative log-likelihood of the written tokens."""
    total = tokens.weighted_sum(-tokens.policy_logprobs())
    return LossOutput(total=total, metrics={"loss": _sum(total), **_policy_metrics(tokens)})


def policy_clip(
    tokens: Tokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.0,
    kl_kind: KlKind = "k3",
    entropy_coef: float = 0.0,
) -> LossOutput:
    """The clipped policy loss ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``, ``r = exp(logp - old_logp)``.

    Columns: ``advantages``; ``old_logprobs`` (left out: the current ones without gradient, so r is 1 and neither bound
    acts); ``ref_logprobs`` where ``kl_coef`` is not 0. Then ``kl_coef * KL - entropy_coef * entropy`` is added to each
    token. The log-ratio is held within 20 before exp, with no gradient outside. Schulman et al. 2017, arXiv:1707.06347,
    eq. 7; two bounds: Yu et al. 2025, arXiv:2503.14476, eq. 10.
    """
    logprobs_N = tokens.policy_logprobs()
    advantages_N = tokens.column("advantages")
    old_N = tokens.columns.get("old_logprobs", logprobs_N.detach())
    ratio_N = (logprobs_N - old_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain_N = -advantages_N * ratio_N
    clipped_N = -advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = torch.maximum(plain_N, clipped_N)
    metrics = _policy_metrics(tokens)
    if kl_coef:
        kl_N = kl_in_loss(logprobs_N, tokens.column("ref_logprobs"), kl_kind)
        metrics["ref_kl"] = _mean(kl_N)
        loss_N = loss_N + kl_coef * kl_N
    if entropy_coef and tokens.entropy_N is not None:
        loss_N = loss_N - entropy_coef * tokens.entropy_N
    total = tokens.weighted_sum(loss_N)
    with torch.no_grad():
        hit_N = clipped_N > plain_N
        metrics["clip_low"] = _mean(hit_N & (advantages_N < 0))
        metrics["clip_high"] = _mean(hit_N & (advantages_N > 0))
        metrics["approx_kl"] = _mean(old_N - logprobs_N)
    metrics["loss"] = _sum(total)
    return LossOutput(total=total, metrics=metrics)


def value_clip(tokens: Tokens, *, value_clip: float = 0.2) -> LossOutput:
    """``max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2) / 2``.

    Columns: ``returns``; ``old_values`` (left out: no clipping). Schulman et al. 2017 as in OpenAI's baselines.
    """
    values_N = tokens.critic_values()
    returns_N = tokens.column("returns")
    error_N = (values_N - returns_N).square()
    clipped_error_N = error_N
    if "old_values" in tokens.columns:
        old_N = tokens.columns["old_values"]
        moved_N = torch.clamp(values_N, old_N - value_clip, old_N + value_clip)
        clipped_error_N = (moved_N - returns_N).square()
    total = tokens.weighted_sum(torch.maximum(error_N, clipped_error_N) / 2)
    metrics = {
        "loss": _sum(total),
        "clip": _mean(clipped_error_N > error_N),
        "value": _mean(values_N),
        "error": _mean(error_N),
    }
    return LossOutput(total=total, metrics=metrics)


def kl_in_loss(logprobs_N: Tensor, ref_logprobs_N: Tensor, kind: KlKind) -> Tensor:
    """``kl_estimate`` of ``algorithms.advantages`` with gradient: k1 d, k2 d^2/2, k3 exp(-d) - 1 + d, per token.

    The derivatives by ``logprobs`` are 1, d and 1 - exp(-d). Over tokens that the policy samples, k2 then has the
    gradient of KL(policy || reference) in expectation, k3 that of KL(reference || policy), and k1 none at all: it adds
    noise and holds nothing near (it belongs in the reward).
    """
    d_N = logprobs_N - ref_logprobs_N
    if kind == "k1":
        return d_N
    if kind == "k2":
        return d_N.square() / 2
    return torch.expm1(-d_N) + d_N


LOSSES: Mapping[str, Callable[..., LossOutput]] = {"sft": sft, "policy_clip": policy_clip, "value_clip": value_clip}
"""The built-in losses by name."""


def resolve_loss(ref: LossRef) -> Callable[[Tokens], LossOutput]:
    """The loss that ``ref`` names, with its settings bound. ConfigError names what does not exist.

    A loss of one's own may return the scalar tensor alone.
    """
    function = ref.function or LOSSES.get(ref.use) or _import_loss(ref.use)
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in ref.settings:
        if name not in known:
            raise ConfigError(f"the loss {ref.use!r} has no setting {name!r}.{nearest(name, known)}")
    if ref.use in LOSSES and ref.function is None:
        return partial(LOSSES[ref.use], **ref.settings)
    return lambda tokens: _as_output(ref.use, function(tokens, **ref.settings), tokens)


def _as_output(use: str, out: object, tokens: Tokens) -> LossOutput:
    """What a loss of one's own returned; a scalar tensor gets the metrics that every policy has."""
    if isinstance(out, LossOutput):
        return out
    if not isinstance(out, Tensor) or out.dim() != 0:
        came = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(
            f"the loss {use!r} returned {came}. Return tokens.weighted_sum(loss_N), or a LossOutput with metrics."
        )
    metrics = {} if tokens.logprobs_N is None else _policy_metrics(tokens)
    return LossOutput(total=out, metrics={"loss": _sum(out), **metrics})


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


def _import_loss(use: str) -> Loss:
    if not is_named(use):
        raise ConfigError(
            f"there is no loss {use!r}.{nearest(use, LOSSES)} A loss of your own is named 'module:function'."
        )
    found = find_named(use, f"the loss {use!r}")
    if not callable(found):
        raise ConfigError(f"the loss {use!r} is a {type(found).__name__}. Name a function (tokens, **settings).")
    return found


def _policy_metrics(tokens: Tokens) -> dict[str, Metric]:
    """Entropy, and how far the trainer's log-probs are from the sampler's, over the tokens that an engine sampled."""
    metrics: dict[str, Metric] = {}
    if tokens.entropy_N is not None:
        metrics["entropy"] = _mean(tokens.entropy_N)
    gap_N = (tokens.policy_logprobs().detach().double() - tokens.sampler_logprobs_N.double())[tokens.sampled_N]
    if len(gap_N):
        ratio_N = gap_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        metrics["sampler_gap"] = _mean(gap_N.abs())
        metrics["sampler_gap_max"] = Metric("max", gap_N.abs().max().item())
        metrics["sampler_ratio"] = _mean(ratio_N)
        metrics["sampler_ratio_square"] = _mean(ratio_N.square())
    return metrics


def _mean(values_N: Tensor) -> Metric:
    return Metric("mean", values_N.detach().sum(dtype=torch.float64).item(), len(values_N))


def _sum(total: Tensor) -> Metric:
    return Metric("sum", total.item())
