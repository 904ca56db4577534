"""The parts of a decoder between its matrix products, forward and backward in few passes over memory.

Each is what autograd would compute, with less kept and fewer temporaries; everything is float32 inside, whatever the
types outside. Shapes: M tokens, C the width, H heads of D.
"""

from functools import cache
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Turns", "gated", "rms_norm", "rotated", "turn", "turns_of"]

Turns: TypeAlias = tuple[Tensor, Tensor]
"""Of each position the cosines of its angles, twice, and their sines, the first ones negated: [M, 1, D] each."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``w * x / sqrt(mean(x^2) + eps)`` over the last dimension (Zhang, Sennrich, arXiv:1910.07467), as ``dtype``."""
    return cast(Tensor, _RmsNorm.apply(x, weight, eps, dtype))


def turns_of(angles: Tensor) -> Turns:
    """The turns by angles [M, D/2]."""
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=1)[:, None], torch.cat((-sin, sin), dim=1)[:, None]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads x [M, H, D] with pairs (i, i + D/2) turned by the angles of their positions (``turns_of``)."""
    return cast(Tensor, _Rotate.apply(x, cos, sin))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``rotated`` in float32 and without gradient; by ``-sin`` it turns back."""
    wide = x.float()
    return torch.roll(wide, x.shape[-1] // 2, -1).mul_(sin).addcmul_(wide, cos)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` (Shazeer, arXiv:2002.05202)."""
    return cast(Tensor, _Gated.apply(gate, up))


@cache
def _scalar(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, device=device)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(_scalar(eps, x.device), length, length, value=1 / x.shape[-1]).rsqrt_()
        ctx.save_for_backward(x, scale, weight)
        return (wide * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, scale, weight = ctx.saved_tensors
        grad, normed = grad_outputs[0].float(), x.float() * scale
        inner = grad * normed
        of_weight = inner.reshape(-1, x.shape[-1]).sum(0) if ctx.needs_input_grad[1] else None
        share = inner.matmul(weight).mul_(-1 / x.shape[-1]).unsqueeze(-1)
        return normed.mul_(share).addcmul_(grad, weight).mul_(scale).to(x.dtype), of_weight, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turn(x, cos, sin).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return turn(grad_outputs[0], cos, -sin).to(grad_outputs[0].dtype), None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad, wide = grad_outputs[0], gate.float()
        # With s = sigmoid(g), silu(g) = g s and its slope is s + g s (1 - s): one exponential for both gradients.
        share = wide.sigmoid()
        act = wide * share
        of_gate = share.addcmul_(act, 1 - share).mul_(grad).mul_(up)
        return of_gate.to(gate.dtype), act.mul_(grad).to(up.dtype)
