"""Attention over a packed row. Plain causal attention computes every prompt once for all its completions; what some
families that transformers computes do beside (sliding windows, soft caps, sinks) spells every sequence out.

Padding stands to the right, so causal attention never looks at it and needs no mask. Shapes: M packed tokens, H heads,
K key-value heads shared by S = H / K heads each, D dimensions of a head; of a block G clusters, n rows, C tokens of
their own, P of the prompt (see ``layout``).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.layout import AttentionLayout, Block, GatherIndex, SharedLayout, SpelledLayout

__all__ = ["attend", "gather_rows"]

_FLASH_FROM = 96
"""Rows without a prompt of at least this length go to torch's fused kernel: products over triangles win there."""


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
    """Causal attention inside each sequence of ``layout``: query [M, H, D], key and value [M, K, D]; gives [M, H, D].

    A token at position p sees the keys at ``p - window < k <= p``. On a CPU everything is computed in float32: its
    batched products and its fused kernel's backward pass are several times slower in bfloat16. Elsewhere torch's fused
    kernels compute sequences spelled out.
    """
    given, on_cpu = query.dtype, query.device.type == "cpu"
    if on_cpu:
        query, key, value = query.float(), key.float(), value.float()
    scale = query.shape[2] ** -0.5 if scaling is None else scaling
    with torch.autocast(query.device.type, enabled=False):
        if on_cpu and window is None and softcap is None and sinks is None:
            mixed = cast(Tensor, _SharedAttention.apply(query, key, value, layout.shared, scale))
        else:
            mixed = _spelled_attention(
                query, key, value, layout.spelled, scale, window=window, softcap=softcap, sinks=sinks
            )
    return mixed.to(given)


class _SharedAttention(torch.autograd.Function):
    """Block by block: products, a softmax, and by hand what autograd would do, in place where it would copy."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SharedLayout, scale: float) -> Tensor:
        ctx.layout, ctx.scale = layout, scale
        q, k, v = _padded(query, key, value, layout)
        out, kept = torch.empty_like(q), list[Tensor]()
        for block in layout.blocks:
            step = _flash_forward if _is_wide(block) else _forward
            out[block.places], saved = step(block, q, k, v, scale)
            kept += saved
        ctx.save_for_backward(query, key, value, *kept)
        return out.index_select(0, layout.unpad).view_as(query)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, *kept = ctx.saved_tensors
        layout, scale = cast(SharedLayout, ctx.layout), cast(float, ctx.scale)
        q, k, v = _padded(query, key, value, layout)
        grad = q.new_zeros(q.shape[0], query.shape[1] * query.shape[2])
        grad = grad.index_copy_(0, layout.unpad, grad_outputs[0].reshape(query.shape[0], -1)).view_as(q)
        of_q, of_k, of_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for block in layout.blocks:
            if _is_wide(block):
                output, logsumexp, *kept = kept
                _flash_backward(block, (q, k, v), (of_q, of_k, of_v), grad, output, logsumexp, scale)
            else:
                probs, *kept = kept
                _backward(block, (q, k, v), (of_q, of_k, of_v), grad, probs, scale)
        return (
            of_q.index_select(0, layout.unpad).view_as(query),
            _sum_rows(of_k, layout.keys).view_as(key),
            _sum_rows(of_v, layout.keys).view_as(value),
            None,
            None,
        )


def _padded(query: Tensor, key: Tensor, value: Tensor, layout: SharedLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [places, K, S, D], keys and values [places and prompts, K, D]."""
    heads, dim = key.shape[1], key.shape[2]
    q = query.reshape(query.shape[0], -1).index_select(0, layout.queries).view(-1, heads, query.shape[1] // heads, dim)
    k, v = (x.reshape(x.shape[0], -1).index_select(0, layout.keys.index).view(-1, heads, dim) for x in (key, value))
    return q, k, v


def _is_wide(block: Block) -> bool:
    return block.causal and not block.prompt and block.own >= _FLASH_FROM


def _queries(block: Block, x: Tensor) -> Tensor:
    """[G n C, K, S, D] -> [G K n, S C, D], its memory also [G K, n S C, D]."""
    _, heads, shared, dim = x.shape
    x = x.view(block.clusters, block.rows, block.own, heads, shared, dim).permute(0, 3, 1, 4, 2, 5)
    return x.reshape(block.clusters * heads * block.rows, shared * block.own, dim)


def _own(block: Block, x: Tensor) -> Tensor:
    """Keys or values of the rows [G n C, K, D] -> [G K n, C, D]."""
    _, heads, dim = x.shape
    x = x.view(block.clusters, block.rows, block.own, heads, dim).permute(0, 3, 1, 2, 4)
    return x.reshape(block.clusters * heads * block.rows, block.own, dim)


def _prompts(block: Block, x: Tensor) -> Tensor:
    """Keys or values of the prompts [G P, K, D] -> [G K, P, D]."""
    _, heads, dim = x.shape
    x = x.view(block.clusters, block.prompt, heads, dim).transpose(1, 2)
    return x.reshape(block.clusters * heads, block.prompt, dim)


def _from_queries(block: Block, x: Tensor, like: Tensor) -> Tensor:
    """The inverse of ``_queries``, as places of ``like``."""
    _, heads, shared, dim = like.shape
    x = x.view(block.clusters, heads, block.rows, shared, block.own, dim).permute(0, 2, 4, 1, 3, 5)
    return x.reshape(-1, heads, shared, dim)


def _from_own(block: Block, x: Tensor, like: Tensor) -> Tensor:
    _, heads, dim = like.shape
    return x.view(block.clusters, heads, block.rows, block.own, dim).permute(0, 2, 3, 1, 4).reshape(-1, heads, dim)


def _from_prompts(block: Block, x: Tensor, like: Tensor) -> Tensor:
    _, heads, dim = like.shape
    return x.view(block.clusters, heads, block.prompt, dim).transpose(1, 2).reshape(-1, heads, dim)


def _forward(block: Block, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, list[Tensor]]:
    """The outputs at the block's places, and what its backward pass needs: the probabilities [G K n, S C, P + C]."""
    places, heads = block.places, q.shape[1]
    query = _queries(block, q[places])
    scores = torch.bmm(query, _own(block, k[places]).transpose(1, 2)).mul_(scale)
    scores.view(block.clusters, -1, block.own, block.own).add_(block.mask)
    if not block.prompt:
        probs = scores.softmax(dim=-1)
        return _from_queries(block, torch.bmm(probs, _own(block, v[places])), q), [probs]
    together = query.view(block.clusters * heads, -1, query.shape[2])
    keys = _prompts(block, k[block.prompt_places]).transpose(1, 2)
    ahead = torch.bmm(together, keys).mul_(scale)
    if block.prompt_mask is not None:
        ahead.view(block.clusters, -1, block.prompt).add_(block.prompt_mask[:, None])
    probs = torch.cat((ahead.view(*scores.shape[:2], block.prompt), scores), dim=-1).softmax(dim=-1)
    of_prompt, of_own = _split(block, probs, heads)
    mixed = torch.bmm(of_own, _own(block, v[places]))
    mixed.view(together.shape).baddbmm_(of_prompt, _prompts(block, v[block.prompt_places]))
    return _from_queries(block, mixed, q), [probs]


def _backward(
    block: Block,
    inputs: tuple[Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    probs: Tensor,
    scale: float,
) -> None:
    """Write the block's gradients into those of the padded queries, keys and values."""
    (q, k, v), (of_q, of_k, of_v) = inputs, grads
    places, heads = block.places, q.shape[1]
    query, back = _queries(block, q[places]), _queries(block, grad[places])
    key = _own(block, k[places])
    of_probs = torch.bmm(back, _own(block, v[places]).transpose(1, 2))
    if block.prompt:
        ahead = torch.bmm(back.view(block.clusters * heads, -1, back.shape[2]), _prompts_t(block, v))
        of_probs = torch.cat((ahead.view(*of_probs.shape[:2], block.prompt), of_probs), dim=-1)
    of_scores = torch.ops.aten._softmax_backward_data(of_probs, probs, -1, probs.dtype).mul_(scale)
    if not block.prompt:
        of_query = torch.bmm(of_scores, key)
        of_k[places] = _from_own(block, torch.bmm(of_scores.transpose(1, 2), query), k)
        of_v[places] = _from_own(block, torch.bmm(probs.transpose(1, 2), back), v)
    else:
        (scores_p, scores_o), (probs_p, probs_o) = (_split(block, x, heads) for x in (of_scores, probs))
        together, back_p = (x.view(block.clusters * heads, -1, x.shape[2]) for x in (query, back))
        of_query = torch.bmm(scores_o, key)
        of_query.view(together.shape).baddbmm_(scores_p, _prompts(block, k[block.prompt_places]))
        of_k[places] = _from_own(block, torch.bmm(scores_o.transpose(1, 2), query), k)
        of_v[places] = _from_own(block, torch.bmm(probs_o.transpose(1, 2), back), v)
        of_k[block.prompt_places] = _from_prompts(block, torch.bmm(scores_p.transpose(1, 2), together), k)
        of_v[block.prompt_places] = _from_prompts(block, torch.bmm(probs_p.transpose(1, 2), back_p), v)
    of_q[places] = _from_queries(block, of_query, q)


def _prompts_t(block: Block, x: Tensor) -> Tensor:
    return _prompts(block, x[block.prompt_places]).transpose(1, 2)


def _split(block: Block, x: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Scores or probabilities [G K n, S C, P + C]: those of the prompt as [G K, n S C, P], and those of the rows."""
    ahead = x[..., : block.prompt].reshape(block.clusters * heads, -1, block.prompt)
    return ahead, x[..., block.prompt :].contiguous()


def _flash_forward(block: Block, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, list[Tensor]]:
    query, key, value = _for_flash(block, q, k, v)
    out, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, True, scale=scale
    )
    return out.transpose(1, 2).reshape(-1, *q.shape[1:]), [out, logsumexp]


def _flash_backward(
    block: Block,
    inputs: tuple[Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    scale: float,
) -> None:
    (q, k, v), (of_q, of_k, of_v) = inputs, grads
    query, key, value = _for_flash(block, q, k, v)
    back = grad[block.places].view(block.clusters, block.own, -1, q.shape[3]).transpose(1, 2)
    by_query, by_key, by_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        back, query, key, value, output, logsumexp, 0.0, True, scale=scale
    )
    of_q[block.places] = by_query.transpose(1, 2).reshape(-1, *q.shape[1:])
    for target, by in ((of_k, by_key), (of_v, by_value)):
        # Heads that share a key-value head were given copies of it.
        summed = by.transpose(1, 2).reshape(-1, k.shape[1], q.shape[2], k.shape[2]).sum(2)
        target[block.places] = summed


def _for_flash(block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[G, H, C, D] each, key-value heads once for every head."""
    shape = (block.clusters, block.own, -1, q.shape[3])
    query = q[block.places].view(shape).transpose(1, 2)
    key, value = (x[block.places].view(shape).repeat_interleave(q.shape[2], dim=2).transpose(1, 2) for x in (k, v))
    return query, key, value


def _spelled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: SpelledLayout,
    scale: float,
    *,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    num_heads, num_kv_heads, dim = query.shape[1], key.shape[1], query.shape[2]
    padded = [gather_rows(x.reshape(x.shape[0], -1), layout.pad) for x in (query, key, value)]
    outputs: list[Tensor] = []
    start = 0
    for rows, width in layout.blocks:
        q, k, v = (x[start : start + rows * width].view(rows, width, -1, dim).transpose(1, 2) for x in padded)
        if softcap is not None or sinks is not None:
            attended = _written_out(q, k, v, _visible(width, window, q.device), scale, softcap, sinks)
        else:
            cut = window is not None and width > window
            attended = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=_visible(width, window, q.device) if cut else None,
                is_causal=not cut,
                scale=scale,
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


def _written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """What no fused attention does: ``cap * tanh(s / cap)`` of scores, and sinks that take weight and give nothing."""
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    scores = (q @ k.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), dim=3)
    return scores.softmax(dim=3)[..., : k.shape[2]].to(v.dtype) @ v


def gather_rows(x: Tensor, rows: GatherIndex) -> Tensor:
    """``x[rows.index]`` [K, C] of x [M, C]; gradients of places that read the same row are summed in a fixed order."""
    return cast(Tensor, _Gather.apply(x, rows))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: GatherIndex) -> Tensor:
        ctx.rows = rows
        return x.index_select(0, rows.index)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return _sum_rows(grad_outputs[0], cast(GatherIndex, ctx.rows)), None


def _sum_rows(x: Tensor, rows: GatherIndex) -> Tensor:
    """The transpose of a gather: for each of its M rows the sum of x over the places that it was taken to."""
    return F.embedding_bag(rows.bag, x.reshape(x.shape[0], -1), rows.bag_starts, mode="sum")


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
