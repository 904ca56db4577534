"""Log-probs and entropies from hidden states, without the logits of all tokens at once.

Logits of a few rows are made, reduced and dropped; the backward pass makes them again from the saved log-sum-exp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.algorithms.losses import VocabularyFunction
from stretto.backends.torch.recompute import recomputed
from stretto.families.facts import LogitShape

__all__ = ["Head", "over_vocabulary", "token_logprobs"]

CHUNK_ELEMENTS = 2**24
"""Logits alive at the same time (64 MB of float32; the backward pass holds three such)."""


def token_logprobs(
    hidden_N: Tensor,
    weight: Tensor,
    targets_N: Tensor,
    inverse_temperature_N: Tensor,
    shape: LogitShape | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, both [N] float32, differentiable.

    With ``z = inverse_temperature * shape(weight @ hidden)``: ``logp = z[target] - logsumexp(z)`` and
    ``H = -sum(softmax(z) log_softmax(z))``. hidden_N [N, C], weight [V, C]; products are in the type of the hidden
    states, everything after them in float32.
    """
    return cast(
        tuple[Tensor, Tensor],
        _TokenLogprobs.apply(hidden_N, weight, targets_N, inverse_temperature_N, shape or LogitShape()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """What a Model says about N tokens: states [N, C], the head's weight [V, C] and what is done to logits.

    Rows of the weight beyond the vocabulary of the Model that learns are left out.
    """

    hidden_N: Tensor
    weight: Tensor
    shape: LogitShape


def over_vocabulary(
    heads: Sequence[Head], inverse_temperature_N: Tensor, function: VocabularyFunction, places: Tensor | None
) -> Tensor:
    """``function`` of the log-probs over the vocabulary of each head, [n], for the tokens ``places`` (None: all).

    Log-probs of a few tokens are made, reduced and dropped; the backward pass makes them again. Those of every head are
    over the tokens of the first one.
    """
    vocabulary = len(heads[0].weight)

    def some(rows: Tensor | slice) -> Tensor:
        logps = []
        for head in heads:
            hidden = head.hidden_N[rows]
            z = _logits(hidden, head.weight[:vocabulary].to(hidden.dtype), head.shape)
            logps.append((z * inverse_temperature_N[rows, None]).log_softmax(-1))
        return function(*logps)

    count = len(inverse_temperature_N) if places is None else len(places)
    chunks = [rows if places is None else places[rows] for rows in _chunks(count, vocabulary)]
    if not chunks:
        return heads[0].hidden_N.new_zeros(0, dtype=torch.float32)
    device = inverse_temperature_N.device
    return torch.cat([recomputed(partial(some, rows), device) for rows in chunks])


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, inverse_temperature: Tensor, shape: LogitShape
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, lse = (hidden.new_empty(len(hidden), dtype=wide) for _ in range(3))
        cast_weight = weight.to(hidden.dtype)
        for rows in _chunks(len(hidden), len(weight)):
            z = _logits(hidden[rows], cast_weight, shape).mul_(inverse_temperature[rows, None])
            lse[rows] = z.logsumexp(-1)
            logp = z.sub_(lse[rows, None])
            logprobs[rows] = logp.gather(1, targets[rows, None]).squeeze(1)
            # Not lse - sum(p z): of large logits that is a small difference of large numbers, and can be negative.
            entropy[rows] = logp.exp().mul_(logp).sum(-1).neg_()
        ctx.save_for_backward(hidden, weight, targets, inverse_temperature, lse, entropy)
        ctx.shape = shape
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor, Tensor, None, None, None]:
        grad_logprobs, grad_entropy = grad_outputs
        shape = cast(LogitShape, ctx.shape)
        hidden, weight, targets, inverse_temperature, lse, entropy = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight)
        cast_weight = weight.to(hidden.dtype)
        for rows in _chunks(len(hidden), len(weight)):
            z = _logits(hidden[rows], cast_weight, shape)
            # d (cap tanh(x / cap)) / dx = 1 - tanh(x / cap)^2
            slope = None if shape.cap is None else (z / shape.cap).square_().neg_().add_(1)
            logp = z.mul_(inverse_temperature[rows, None]).sub_(lse[rows, None])
            p = logp.exp()
            grad = torch.zeros_like(p)
            if grad_logprobs is not None:
                # d logp[target] / dz = onehot(target) - p
                grad.addcmul_(p, grad_logprobs[rows, None], value=-1)
                grad.scatter_add_(1, targets[rows, None], grad_logprobs[rows, None])
            if grad_entropy is not None:
                # dH / dz = -p (log p + H)
                grad.sub_(p.mul_(logp.add_(entropy[rows, None])).mul_(grad_entropy[rows, None]))
            grad.mul_(inverse_temperature[rows, None] * shape.scale)
            if slope is not None:
                grad.mul_(slope)
            grad = grad.to(hidden.dtype)
            grad_hidden[rows] = grad @ cast_weight
            if hidden.dtype == weight.dtype:
                grad_weight.addmm_(grad.t(), hidden[rows])
            else:
                grad_weight += grad.t() @ hidden[rows]
        return grad_hidden, grad_weight, None, None, None


def _logits(hidden: Tensor, weight: Tensor, shape: LogitShape) -> Tensor:
    logits = F.linear(hidden, weight)
    return shape.apply(logits.to(torch.promote_types(logits.dtype, torch.float32)))


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(i, min(i + size, rows)) for i in range(0, rows, size)]
