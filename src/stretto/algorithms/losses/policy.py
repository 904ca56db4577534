"""What every policy loss has in common. A file of losses gives the loss of each token; ``policy_loss`` makes of it

    sum over tokens of weight * (correction * loss + kl_coef * KL - entropy_coef * entropy) - nll_coef * imitate * logp

and the metrics that every policy has. The columns ``correction``, weights of an off-policy correction without gradient,
and ``imitate``, weights of tokens to be imitated, are read if they are there. Tokens of weight 0 are left out of
everything but the gap to the sampler.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from stretto.algorithms.losses.kl import kl_in_loss
from stretto.algorithms.losses.metrics import mean_of, policy_metrics, total_of
from stretto.algorithms.losses.tokens import LossOutput, Tokens
from stretto.config.algorithms.losses import KlGradient, LossKlKind
from stretto.types import Metric

__all__ = ["LOG_RATIO_CLAMP", "TokenLosses", "clamped", "log_ratio", "policy_loss"]

LOG_RATIO_CLAMP = 20.0
"""The log-ratio is held within this before exp, unless a setting says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLosses:
    """The loss of each token, before the common terms, and metrics of its own. ``corrected``: the formula has its own
    way to take the column ``correction``, and has done so."""

    loss_N: Tensor
    metrics: Mapping[str, Metric]
    corrected: bool = False


def log_ratio(tokens: Tokens, clamp: float | None) -> Tensor:
    """``logp - old_logp`` [N], with gradient, held within ``clamp``."""
    return clamped(tokens.policy_logprobs() - tokens.old_logprobs(), clamp)


def clamped(values_N: Tensor, limit: float | None) -> Tensor:
    """Values held within +-limit, without gradient outside; None leaves them."""
    return values_N if limit is None else values_N.clamp(-limit, limit)


def policy_loss(surrogate: Callable[..., TokenLosses]) -> Callable[..., LossOutput]:
    """Make a loss of a function ``(tokens, *, settings) -> TokenLosses``: its settings and those of the terms.

    ConfigError where a column is missing.
    """
    own, terms = inspect.signature(surrogate), inspect.signature(_with_terms)
    shared = [p for p in terms.parameters.values() if p.kind is p.KEYWORD_ONLY]
    names = {p.name for p in shared}

    @functools.wraps(surrogate)
    def loss(tokens: Tokens, **settings: object) -> LossOutput:
        mine = {name: value for name, value in settings.items() if name not in names}
        theirs = {name: value for name, value in settings.items() if name in names}
        kept = tokens.trained()
        return _with_terms(tokens, kept, surrogate(kept, **mine), **theirs)  # pyright: ignore[reportArgumentType]

    merged = own.replace(parameters=[*own.parameters.values(), *shared], return_annotation=LossOutput)
    loss.__signature__ = merged  # pyright: ignore[reportAttributeAccessIssue]
    return loss


def _with_terms(
    tokens: Tokens,
    kept: Tokens,
    losses: TokenLosses,
    *,
    kl_coef: float = 0.0,
    kl_kind: LossKlKind = "k3",
    kl_gradient: KlGradient = "value",
    kl_clamp_in: float | None = None,
    kl_clamp_out: float | None = None,
    entropy_coef: float = 0.0,
    nll_coef: float = 0.0,
) -> LossOutput:
    """``kept`` are the tokens that are trained on, and ``losses`` theirs."""
    metrics = {**policy_metrics(tokens), **losses.metrics}
    loss_N = losses.loss_N
    if "correction" in kept.columns and not losses.corrected:
        loss_N = kept.columns["correction"] * loss_N
    if kl_coef:
        kl_N = kl_in_loss(
            kept.policy_logprobs(),
            kept.column("ref_logprobs"),
            kl_kind,
            gradient=kl_gradient,
            clamp_in=kl_clamp_in,
            clamp_out=kl_clamp_out,
            weights_N=log_ratio(kept, LOG_RATIO_CLAMP).exp() if kl_kind == "k3_weighted" else None,
        )
        metrics["ref_kl"] = mean_of(kl_N)
        loss_N = loss_N + kl_coef * kl_N
    if entropy_coef and kept.entropy_N is not None:
        loss_N = loss_N - entropy_coef * kept.entropy_N
    total = kept.weighted_sum(loss_N)
    if nll_coef:
        # Its own denominators: those of the tokens that are imitated, over the whole update.
        nll = -(kept.column("imitate") * kept.policy_logprobs()).sum()
        metrics["nll"] = total_of(nll)
        total = total + nll_coef * nll
    return LossOutput(total=total, metrics={**metrics, "loss": total_of(total)})
