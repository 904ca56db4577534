"""Stretto's own forward of a Llama-family decoder over a preallocated KV cache. Owns no requests and no sampling.

Batch invariance. A row's bits must not depend on its company, so every operation here treats rows alone, and the
shapes that could choose another kernel are fixed: callers give rows x tokens and keys as ``Padding`` counts them (keys
are masked past a row's own length, where a zero weight meets a finite stale value), a matrix is packed or not from
start to end (``Matrix``), and there is one attention path (``Attention``).
"""

import torch
import torch.nn.functional as F

from stretto.engines.native.attention import Attention
from stretto.engines.native.cache import KVCache
from stretto.engines.native.forward import Sizes
from stretto.engines.native.shared import SharedPast
from stretto.engines.native.weights import LayerWeights, Weights, places_of, products_of
from stretto.engines.native.window import WeightWindow
from stretto.families.decoder import DecoderSpec

__all__ = ["Decoder"]


class Decoder:
    """Computes hidden states and logits with the weights it is given. A ``Forward``."""

    shares_prompts = True

    def __init__(
        self,
        spec: DecoderSpec,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        head_dtype: torch.dtype | None = None,
    ) -> None:
        self._spec = spec
        self._dtype, self._device = dtype, device
        self._head_dtype = head_dtype or dtype
        self.sizes = Sizes(vocab_size=spec.vocab_size, hidden=spec.hidden, max_positions=spec.max_positions)
        self.products = tuple(products_of(spec, dtype, self._head_dtype, device).values())
        angles = torch.arange(max_len, dtype=torch.float32)[:, None] * spec.rope.frequencies(spec.head_dim)
        self._turns = torch.complex(angles.cos(), angles.sin()).to(device)
        self._eps = torch.tensor(spec.norm_eps, device=device)

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache."""
        spec = self._spec
        shape = (spec.num_layers, 2, rows, spec.num_kv_heads, length, spec.head_dim)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return KVCache(tensor, spec.num_heads // spec.num_kv_heads)

    def new_weights(self, *, invariant: bool) -> Weights:
        """Memory for the weights, not yet filled."""
        return Weights.empty(self._spec, self._dtype, self._device, head_dtype=self._head_dtype, invariant=invariant)

    def window(self, weights: Weights) -> WeightWindow:
        """The sink that fills ``weights``. ``lm_head.weight`` is passed over if the embedding is the head."""
        tied = {"lm_head.weight": tuple(weights.embed.shape)} if self._spec.tied else {}
        weights.begin()
        return WeightWindow(places_of(self._spec, weights), tied)

    def settle(self, weights: Weights) -> None:
        """As ``Forward.settle``."""
        weights.settle()

    def hidden(
        self,
        weights: Weights,
        cache: KVCache,
        first: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        num_keys: int,
        shared: SharedPast | None = None,
    ) -> torch.Tensor:
        """As ``Forward.hidden``; the states are those before the last norm."""
        rows, chunk = ids.shape
        spec = self._spec
        state = F.embedding(ids.reshape(-1), weights.embed)
        turns = self._turns[positions.reshape(-1)][:, None]
        held = positions if shared is None else positions - shared.base_R[:, None]
        place = cache.places(first, held)
        attend = Attention(spec, cache, first, held, num_keys, shared)
        for index, (layer, flat) in enumerate(zip(weights.layers, cache.flat(), strict=True)):
            inner = self._rms_norm(state, layer.input_norm)
            heads = self._rotated(layer, layer.qkv.times(inner, layer.qkv_bias), turns)
            flat.index_copy_(0, place, heads[:, spec.num_heads :].reshape(-1, spec.head_dim))
            state = layer.out.added(state, attend(heads, index), layer.out_bias)
            inner = self._rms_norm(state, layer.post_norm)
            gate, up = layer.gate_up.times(inner, layer.gate_up_bias).chunk(2, dim=-1)
            state = layer.down.added(state, F.silu(gate).mul_(up), layer.down_bias)
        return state.view(rows, chunk, -1)

    def logits(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        """As ``Forward.logits``."""
        return weights.head.times(self._rms_norm(hidden, weights.norm).to(self._head_dtype)).float()

    def _rotated(self, layer: LayerWeights, qkv: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Split [N, (H + 2 KV) D] into heads [N, H + 2 KV, D]; normalise and turn those of q and k, in place."""
        spec = self._spec
        heads = qkv.view(qkv.shape[0], -1, spec.head_dim)
        turning = heads[:, : spec.num_heads + spec.num_kv_heads]
        if layer.qk_norm is not None:
            turning.copy_(self._rms_norm(turning, layer.qk_norm))
        if self._dtype == torch.float32:
            torch.view_as_complex(turning.unflatten(-1, (-1, 2))).mul_(turns)
        else:
            wide = torch.view_as_complex(turning.float().unflatten(-1, (-1, 2)))
            turning.copy_(torch.view_as_real(wide.mul_(turns)).flatten(-2))
        return heads

    def _rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``w * x / sqrt(mean(x^2) + eps)`` over the last dimension, in float32, as x."""
        wide = x if x.dtype == torch.float32 else x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=1 / x.shape[-1]).rsqrt_()
        normed = torch.mul(wide, scale).mul_(weight)
        return normed if wide is x else normed.to(x.dtype)
