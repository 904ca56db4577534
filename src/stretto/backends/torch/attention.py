"""Attention over a packed row. Plain causal attention computes every prompt once for all its completions; what some
families that transformers computes do beside (sliding windows, soft caps, sinks) spells every sequence out.

Padding stands to the right, so causal attention never looks at it and needs no mask. Shapes: M packed tokens, H heads,
K key-value heads shared by S = H / K heads each, D dimensions of a head; of a block G clusters, n rows, C tokens of
their own, P of the prompt (see ``layout``).
"""

from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.kernels import Turns, rotated, turn
from stretto.backends.torch.layout import AttentionLayout, Block, GatherIndex, SharedLayout, SpelledLayout

__all__ = ["attend", "gather_rows", "picked"]

Heads: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values of all blocks, or their gradients: rows of D."""

_FLASH_FROM = 96
"""Rows without a prompt of at least this length go to torch's fused kernel: products over triangles win there."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: AttentionLayout,
    *,
    turns: Turns | None = None,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention inside each sequence of ``layout``: query [M, H, D], key and value [M, K, D]; gives [M, H, D].

    Queries and keys are turned by ``turns`` first (``kernels.turn``). A token at position p sees the keys at ``p -
    window < k <= p``. On a CPU everything is computed in float32: its batched products and its fused kernel's backward
    pass are several times slower in bfloat16. Elsewhere torch's fused kernels compute sequences spelled out.
    """
    scale = query.shape[2] ** -0.5 if scaling is None else scaling
    on_cpu = query.device.type == "cpu"
    with torch.autocast(query.device.type, enabled=False):
        if on_cpu and window is None and softcap is None and sinks is None:
            shared = layout.shared(query.shape[1], key.shape[1])
            return cast(Tensor, _SharedAttention.apply(query, key, value, turns, shared, scale))
        given = query.dtype
        if turns is not None:
            query, key = rotated(query, *turns), rotated(key, *turns)
        if on_cpu:
            query, key, value = query.float(), key.float(), value.float()
        mixed = _spelled_attention(
            query, key, value, layout.spelled, scale, window=window, softcap=softcap, sinks=sinks
        )
    return mixed.to(given)


class _SharedAttention(torch.autograd.Function):
    """Block by block: products, a softmax, and by hand what autograd would do, each step written where it is wanted."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, turns: Turns | None, layout: SharedLayout, scale: float
    ) -> Tensor:
        ctx.layout, ctx.scale, ctx.turns, ctx.dtype = layout, scale, turns, query.dtype
        q, k = (query, key) if turns is None else (turn(query, *turns), turn(key, *turns))
        tokens = q.float(), k.float(), value.float()
        heads = _in_blocks(tokens, layout)
        out, kept = torch.empty_like(heads[0]), list[Tensor]()
        for block in layout.blocks:
            step = _flash_forward if _is_wide(block) else _forward
            kept += step(block, heads, out, scale)
        ctx.save_for_backward(*tokens, *kept)
        return out.index_select(0, layout.unpad).view(query.shape).to(query.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        layout, scale, turns = cast(SharedLayout, ctx.layout), cast(float, ctx.scale), cast(Turns | None, ctx.turns)
        heads = _in_blocks((query, key, value), layout)
        count, dim = heads[1].shape
        back = torch.zeros_like(heads[0]).index_copy_(0, layout.unpad, grad_outputs[0].float().reshape(-1, dim))
        of_q, of_both = torch.empty_like(back), heads[1].new_empty(2 * count, dim)
        grads = of_q, of_both[:count], of_both[count:]
        for block in layout.blocks:
            if _is_wide(block):
                output, logsumexp, *kept = kept
                _flash_backward(block, heads, grads, back, output, logsumexp, scale)
            else:
                probs, *kept = kept
                _backward(block, heads, grads, back, probs, scale)
        of_query = of_q.index_select(0, layout.unpad).view(query.shape)
        of_key, of_value = _sums(of_both, layout.bag, layout.bag_starts).view(2, *key.shape)
        if turns is not None:
            cos, sin = turns[0], -turns[1]
            of_query, of_key = turn(of_query, cos, sin), turn(of_key, cos, sin)
        return of_query.to(ctx.dtype), of_key.to(ctx.dtype), of_value.to(ctx.dtype), None, None, None


def _in_blocks(tokens: Heads, layout: SharedLayout) -> Heads:
    """The heads of tokens, [M, H, D] and [M, K, D], as those of all blocks."""
    rows = layout.queries, layout.keys, layout.keys
    q, k, v = (x.reshape(-1, x.shape[2]).index_select(0, index) for x, index in zip(tokens, rows, strict=True))
    return q, k, v


def _is_wide(block: Block) -> bool:
    return block.causal and not block.prompt and block.own >= _FLASH_FROM


def _queries(block: Block, x: Tensor) -> Tensor:
    """[G K n, S C, D], where x are the heads of all blocks."""
    return x[block.queries].view(block.products, -1, x.shape[1])


def _own(block: Block, x: Tensor) -> Tensor:
    """Keys or values of the rows [G K n, C, D]."""
    return x[block.keys].view(block.products, block.own, x.shape[1])


def _prompts(block: Block, x: Tensor) -> Tensor:
    """Keys or values of the prompts [G K, P, D]."""
    return x[block.prompt_keys].view(-1, block.prompt, x.shape[1])


def _together(block: Block, x: Tensor) -> Tensor:
    """What belongs to the queries of a cluster: [G K n, S C, D] as [G K, n S C, D]."""
    return x.view(-1, block.rows * x.shape[1], x.shape[2])


def _forward(block: Block, inputs: Heads, out: Tensor, scale: float) -> list[Tensor]:
    """Write the outputs of the block's queries, and give what its backward pass needs: probs [G K n, S C, P + C]."""
    q, k, v = inputs
    query, mixed = _queries(block, q), _queries(block, out)
    scores = torch.bmm(query, _own(block, k).transpose(1, 2))
    masked = scores.view(block.clusters, -1, block.own, block.own)
    torch.add(block.mask, masked, alpha=scale, out=masked)
    if not block.prompt:
        probs = scores.softmax(dim=-1)
        torch.bmm(probs, _own(block, v), out=mixed)
        return [probs]
    ahead = torch.bmm(_together(block, query), _prompts(block, k).transpose(1, 2)).mul_(scale)
    if block.prompt_mask is not None:
        ahead.view(block.clusters, -1, block.prompt).add_(block.prompt_mask[:, None])
    probs = torch.cat((ahead.view(*scores.shape[:2], block.prompt), scores), dim=-1).softmax(dim=-1)
    of_prompt, of_own = _split(block, probs)
    torch.bmm(of_own, _own(block, v), out=mixed)
    _together(block, mixed).baddbmm_(of_prompt, _prompts(block, v))
    return [probs]


def _backward(block: Block, inputs: Heads, grads: Heads, grad: Tensor, probs: Tensor, scale: float) -> None:
    """Write the block's gradients into those of the queries, keys and values of all blocks."""
    (q, k, v), (of_q, of_k, of_v) = inputs, grads
    query, back = _queries(block, q), _queries(block, grad)
    of_probs = torch.bmm(back, _own(block, v).transpose(1, 2))
    if block.prompt:
        of_ahead = torch.bmm(_together(block, back), _prompts(block, v).transpose(1, 2))
        of_probs = torch.cat((of_ahead.view(*of_probs.shape[:2], block.prompt), of_probs), dim=-1)
    of_scores = torch.ops.aten._softmax_backward_data(of_probs, probs, -1, probs.dtype).mul_(scale)
    of_query = _queries(block, of_q)
    (ahead, of_scores), (probs_ahead, probs) = (_split(block, x) for x in (of_scores, probs))
    torch.bmm(of_scores, _own(block, k), out=of_query)
    torch.bmm(of_scores.transpose(1, 2), query, out=_own(block, of_k))
    torch.bmm(probs.transpose(1, 2), back, out=_own(block, of_v))
    if block.prompt:
        _together(block, of_query).baddbmm_(ahead, _prompts(block, k))
        torch.bmm(ahead.transpose(1, 2), _together(block, query), out=_prompts(block, of_k))
        torch.bmm(probs_ahead.transpose(1, 2), _together(block, back), out=_prompts(block, of_v))


def _split(block: Block, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scores or probabilities [G K n, S C, P + C]: those of the prompt as [G K, n S C, P], and those of the rows."""
    if not block.prompt:
        return x, x
    ahead = x[..., : block.prompt].reshape(-1, block.rows * x.shape[1], block.prompt)
    return ahead, x[..., block.prompt :].contiguous()


def _flash_forward(block: Block, inputs: Heads, out: Tensor, scale: float) -> list[Tensor]:
    query, key, value = _for_flash(block, inputs)
    given, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, True, scale=scale
    )
    out[block.queries].view(given.shape).copy_(given)
    return [given, logsumexp]


def _flash_backward(
    block: Block, inputs: Heads, grads: Heads, grad: Tensor, output: Tensor, logsumexp: Tensor, scale: float
) -> None:
    query, key, value = _for_flash(block, inputs)
    of_query, *of_others = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad[block.queries].view(query.shape), query, key, value, output, logsumexp, 0.0, True, scale=scale
    )
    of_q, *targets = grads
    of_q[block.queries].view(query.shape).copy_(of_query)
    for target, by in zip(targets, of_others, strict=True):
        # Heads that share a key-value head were given copies of it.
        own = _own(block, target)
        torch.sum(by.reshape(len(own), -1, *own.shape[1:]), dim=1, out=own)


def _for_flash(block: Block, inputs: Heads) -> Heads:
    """[G, H, C, D] each, key-value heads once for every head."""
    query, key, value = _queries(block, inputs[0]), _own(block, inputs[1]), _own(block, inputs[2])
    shape = (block.clusters, -1, block.own, query.shape[2])
    share = query.shape[1] // block.own
    key, value = (x.repeat_interleave(share, dim=0).view(shape) for x in (key, value))
    return query.view(shape), key, value


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
    return picked(together, layout.unpad).view(-1, num_heads, dim)


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


def picked(x: Tensor, index: Tensor | None) -> Tensor:
    """``x[index]`` [K, C] of x [M, C] where no row is taken twice; all of it for None."""
    return x if index is None else cast(Tensor, _Pick.apply(x, index))


def _sum_rows(x: Tensor, rows: GatherIndex) -> Tensor:
    """The transpose of a gather: for each of its M rows the sum of x over the places that it was taken to."""
    return _sums(x, rows.bag, rows.bag_starts)


def _sums(x: Tensor, bag: Tensor, starts: Tensor) -> Tensor:
    return F.embedding_bag(bag, x.reshape(x.shape[0], -1), starts, mode="sum")


class _Pick(torch.autograd.Function):
    """Its gradient is a copy, not a sum."""

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
