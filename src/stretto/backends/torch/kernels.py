"""The parts of a decoder between its matrix products, forward and backward in few passes over memory.

Each is what autograd would compute, with less kept and fewer temporaries; everything is float32 inside, whatever the
types outside. Shapes: M tokens, C the width, H heads of D.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["gated", "rms_norm", "rotated"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``w * x / sqrt(mean(x^2) + eps)`` over the last dimension (Zhang, Sennrich, arXiv:1910.07467), as ``dtype``."""
    return cast(Tensor, _RmsNorm.apply(x, weight, eps, dtype))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads x [M, H, D] turned by their positions: pairs (i, i + D/2) by angles given as cos, sin [M, 1, D/2]."""
    return cast(Tensor, _Rotate.apply(x, cos, sin))


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` (Shazeer, arXiv:2002.05202)."""
    return cast(Tensor, _Gated.apply(gate, up))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, scale, weight)
        return (wide * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, scale, weight = ctx.saved_tensors
        grad, normed = grad_outputs[0].float(), x.float() * scale
        inner = grad * normed
        of_weight = inner.reshape(-1, x.shape[-1]).sum(0) if ctx.needs_input_grad[1] else None
        share = inner.mul_(weight).sum(-1, keepdim=True).div_(-x.shape[-1])
        return (grad * weight).addcmul_(normed, share).mul_(scale).to(x.dtype), of_weight, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad_outputs[0], cos, sin, -1.0), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    out = torch.empty_like(wide)
    left, right = out.chunk(2, dim=-1)
    torch.mul(first, cos, out=left).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=right).addcmul_(first, sin, value=sign)
    return out.to(x.dtype)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad = grad_outputs[0]
        of_up = F.silu(gate).mul_(grad)
        return torch.ops.aten.silu_backward(grad * up, gate), of_up
