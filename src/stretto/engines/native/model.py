"""Stretto's own forward of a Llama-family decoder over a preallocated KV cache. Owns no requests and no sampling.

Batch invariance. A row's bits must not depend on its company, so every operation here treats rows alone, and the
shapes that could choose another kernel are fixed: callers give rows x tokens in multiples of ``ROWS``, as many keys are
read as ``count_keys`` says (masked past a row's own length, where a zero weight meets a finite stale value), and there
is one attention path, two batched products around a softmax.
"""

import torch
import torch.nn.functional as F

from stretto.engines.native.cache import KVCache
from stretto.engines.native.forward import Sizes
from stretto.engines.native.weights import LayerWeights, Weights, places_of
from stretto.engines.native.window import WeightWindow
from stretto.families.decoder import DecoderSpec

__all__ = ["Decoder"]


class Decoder:
    """Computes hidden states and logits with the weights it is given. A ``Forward``."""

    def __init__(self, spec: DecoderSpec, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
        self._spec = spec
        self._dtype, self._device = dtype, device
        self.sizes = Sizes(vocab_size=spec.vocab_size, hidden=spec.hidden, max_positions=spec.max_positions)
        angles = torch.arange(max_len, dtype=torch.float32)[:, None] * spec.rope.frequencies(spec.head_dim)
        self._turns = torch.complex(angles.cos(), angles.sin()).to(device)
        self._columns = torch.arange(max_len, device=device)
        self._eps = torch.tensor(spec.norm_eps, device=device)

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache."""
        spec = self._spec
        shape = (spec.num_layers, 2, rows, spec.num_kv_heads, length, spec.head_dim)
        return KVCache(torch.empty(shape, dtype=self._dtype, device=self._device))

    def new_weights(self) -> Weights:
        """Memory for the weights, not yet filled."""
        return Weights.empty(self._spec, self._dtype, self._device)

    def window(self, weights: Weights) -> WeightWindow:
        """The sink that fills ``weights``. ``lm_head.weight`` is passed over if the embedding is the head."""
        tied = {"lm_head.weight": tuple(weights.embed.shape)} if self._spec.tied else {}
        return WeightWindow(places_of(self._spec, weights), tied)

    def hidden(
        self, weights: Weights, cache: KVCache, first: int, ids: torch.Tensor, positions: torch.Tensor, num_keys: int
    ) -> torch.Tensor:
        """As ``Forward.hidden``; the states are those before the last norm."""
        rows, chunk = ids.shape
        state = F.embedding(ids.reshape(-1), weights.embed)
        turns = self._turns[positions.reshape(-1)][:, None]
        place = cache.places(first, positions)
        mask = self._mask(positions, num_keys)
        for index, layer in enumerate(weights.layers):
            inner = _rms_norm(state, layer.input_norm, self._eps)
            qkv = self._rotated(layer, F.linear(inner, layer.qkv, layer.qkv_bias), turns)
            mixed = self._attend(qkv, cache.tensor[index], first, (rows, chunk, num_keys), place, mask)
            state = state + F.linear(mixed, layer.out, layer.out_bias)
            inner = _rms_norm(state, layer.post_norm, self._eps)
            gate, up = F.linear(inner, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            state = state + F.linear(F.silu(gate).mul_(up), layer.down, layer.down_bias)
        return state.view(rows, chunk, -1)

    def logits(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        """As ``Forward.logits``."""
        inner = _rms_norm(hidden, weights.norm, self._eps)
        return F.linear(inner, weights.head).float()

    def _rotated(self, layer: LayerWeights, qkv: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Split [N, (H + 2 KV) D] into heads [N, H + 2 KV, D]; normalise and turn those of q and k, in place."""
        spec = self._spec
        heads = qkv.view(qkv.shape[0], -1, spec.head_dim)
        turning = heads[:, : spec.num_heads + spec.num_kv_heads]
        if layer.qk_norm is not None:
            turning.copy_(_rms_norm(turning, layer.qk_norm, self._eps))
        if self._dtype == torch.float32:
            torch.view_as_complex(turning.unflatten(-1, (-1, 2))).mul_(turns)
        else:
            wide = torch.view_as_complex(turning.float().unflatten(-1, (-1, 2)))
            turning.copy_(torch.view_as_real(wide.mul_(turns)).flatten(-2))
        return heads

    def _attend(
        self,
        qkv: torch.Tensor,
        cache: torch.Tensor,
        first: int,
        shape: tuple[int, int, int],
        place: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Store keys and values in a layer's ``cache``, attend over it; returns [R C, H D]."""
        spec = self._spec
        rows, chunk, num_keys = shape
        kv_heads, width = spec.num_kv_heads, spec.head_dim
        shared = spec.num_heads // kv_heads
        cache.view(-1, width).index_copy_(0, place, qkv[:, spec.num_heads :].reshape(-1, width))
        keys, values = cache[:, first : first + rows].flatten(1, 2)[:, :, :num_keys].unbind(0)
        # The heads that share a key-value head, and the tokens of a chunk, are rows of one product.
        query = qkv[:, : spec.num_heads].view(rows, chunk, kv_heads, shared, width).permute(0, 2, 3, 1, 4)
        query = query.reshape(rows * kv_heads, shared * chunk, width)
        scores = torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=width**-0.5)
        mixed = torch.bmm(scores.softmax(dim=-1), values)
        mixed = mixed.view(rows, kv_heads, shared, chunk, width).permute(0, 3, 1, 2, 4)
        return mixed.reshape(rows * chunk, -1)

    def _mask(self, positions: torch.Tensor, num_keys: int) -> torch.Tensor:
        """0 where a token may look, -inf elsewhere: [R kv_heads, shared C, num_keys]."""
        spec = self._spec
        rows, chunk = positions.shape
        hidden = self._columns[:num_keys] > positions[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
        shape = (rows, spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, chunk, num_keys)
        return mask[:, None, None].expand(shape).reshape(shape[0] * shape[1], shape[2] * chunk, num_keys)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """``w * x / sqrt(mean(x^2) + eps)`` over the last dimension, in float32, as x."""
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide * torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()).mul_(weight).to(x.dtype)
