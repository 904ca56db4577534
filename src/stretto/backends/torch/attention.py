"""Attention over a packed row: sequences are gathered into padded blocks, attended to causally and scattered back.

Padding stands to the right, so causal attention never looks at it and needs no mask. Sliding windows, soft caps and
sinks are those of the families that transformers computes.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.packing import AttentionLayout, GatherIndex

__all__ = ["attend", "gather_rows"]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: AttentionLayout,
    *,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention inside each sequence of ``layout``: query [M, H, D], key and value [M, Hkv, D]; gives [M, H, D].

    A token at position p sees the keys at ``p - window < k <= p``.
    """
    num_heads, num_kv_heads, dim = query.shape[1], key.shape[1], query.shape[2]
    padded = [gather_rows(x.reshape(x.shape[0], -1), layout.pad) for x in (query, key, value)]
    outputs: list[Tensor] = []
    start = 0
    for rows, width in layout.blocks:
        q, k, v = (x[start : start + rows * width].view(rows, width, -1, dim).transpose(1, 2) for x in padded)
        if softcap is not None or sinks is not None:
            attended = _spelled_out(q, k, v, _visible(width, window, q.device), scaling, softcap, sinks)
        else:
            cut = window is not None and width > window
            attended = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=_visible(width, window, q.device) if cut else None,
                is_causal=not cut,
                scale=scaling,
                enable_gqa=num_heads != num_kv_heads,
            )
        outputs.append(attended.transpose(1, 2).reshape(rows * width, num_heads * dim))
        start += rows * width
    together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return cast(Tensor, _Pick.apply(together, layout.unpad)).view(-1, num_heads, dim)


def _visible(width: int, window: int | None, device: torch.device) -> Tensor:
    """Which key (column) each token (row) sees, [width, width]."""
    distance = torch.arange(width, device=device)[:, None] - torch.arange(width, device=device)
    return (distance >= 0) & (distance < (width if window is None else window))


def _spelled_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """What no fused attention does: ``cap * tanh(s / cap)`` of scores, and sinks that take weight and give nothing."""
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    scores = (q @ k.transpose(2, 3)).float() * (q.shape[3] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), dim=3)
    return scores.softmax(dim=3)[..., : k.shape[2]].to(v.dtype) @ v


def gather_rows(x: Tensor, rows: GatherIndex) -> Tensor:
    """``x[rows.index]`` [K, C] of x [M, C]; gradients of places that read the same row are summed in a fixed order."""
    return cast(Tensor, _Gather.apply(x, rows.index, rows.bag, rows.bag_starts))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, bag: Tensor, bag_starts: Tensor) -> Tensor:
        ctx.save_for_backward(bag, bag_starts)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        bag, bag_starts = ctx.saved_tensors
        grad = grad_outputs[0].contiguous()
        return F.embedding_bag(bag, grad, bag_starts, mode="sum"), None, None, None


class _Pick(torch.autograd.Function):
    """``x[index]`` where no row is taken twice: its gradient is a copy, not a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = x.shape[0]
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        grad = grad_outputs[0]
        return grad.new_zeros(ctx.size, grad.shape[1]).index_copy_(0, index, grad), None
