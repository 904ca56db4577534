"""The attention of one pass over the model, the same in every layer. Owns its masks and what it reads of the cache.

One path for prompts and decoding: two batched products around a softmax, in which the heads that share a key-value
head, and the tokens of a chunk, are rows of one product. Rows that have a prompt in common (``shared``) attend to it
in a second such pair, all of them together, and the two results are merged by their log-sum-exps (as partial softmaxes
are in Dao et al. 2022, arXiv:2205.14135, section 3.1).

Shapes: R rows of C tokens, H heads of D over KV key-value heads, G shared prompts with room for W rows each.
"""

import torch

from stretto.engines.native.cache import KVCache
from stretto.engines.native.rounding import weighted
from stretto.engines.native.shared import SharedPast
from stretto.families.decoder import DecoderSpec

__all__ = ["Attention"]

_LANES = 16
"""Floats of the widest vector of a CPU."""


class Attention:
    """Tokens ``held`` [R, C], by their places in rows ``first ..`` of ``cache``, attend to ``num_keys`` places."""

    def __init__(
        self,
        spec: DecoderSpec,
        cache: KVCache,
        first: int,
        held: torch.Tensor,
        num_keys: int,
        shared: SharedPast | None,
    ) -> None:
        self._spec, self._shared = spec, shared
        self._rows, self._chunk = held.shape
        self._per_kv = spec.num_heads // spec.num_kv_heads
        self._own = cache.read(first, self._rows, num_keys)
        self._mask = self._hiding(held, num_keys, cache.tensor.dtype)
        if shared is not None:
            count = len(shared.lengths_G)
            self._common = shared.cache.read(0, count, shared.num_keys)
            self._common_mask = self._hiding(shared.lengths_G[:, None] - 1, shared.num_keys, cache.tensor.dtype)[:, :1]
            self._alone = ~shared.has_R[:, None, None, None]

    def __call__(self, heads: torch.Tensor, layer: int) -> torch.Tensor:
        """What the queries of ``heads`` [R C, H + 2 KV, D] find in ``layer``, [R C, H D]; their own keys are there."""
        rows, chunk, kv_heads, per_kv = self._rows, self._chunk, self._spec.num_kv_heads, self._per_kv
        width = self._spec.head_dim
        query = heads[:, : self._spec.num_heads]
        if chunk > 1:
            query = query.view(rows, chunk, kv_heads, per_kv, width).permute(0, 2, 3, 1, 4)
        keys, values = self._own[layer]
        scores = self._scores(query.reshape(rows * kv_heads, per_kv * chunk, width), keys, self._mask)
        mixed = weighted(scores.softmax(dim=-1), values)
        if self._shared is not None:
            mixed = self._merged(mixed, scores, heads, layer, self._shared)
        if chunk > 1:
            mixed = mixed.view(rows, kv_heads, per_kv, chunk, width).permute(0, 3, 1, 2, 4)
        return mixed.reshape(rows * chunk, -1)

    def _merged(
        self, own: torch.Tensor, own_scores: torch.Tensor, heads: torch.Tensor, layer: int, shared: SharedPast
    ) -> torch.Tensor:
        """``own`` with what is found in the shared prompts, each weighted by its share of the softmax."""
        count, kv_heads, per_kv = len(shared.lengths_G), self._spec.num_kv_heads, self._per_kv
        room = len(shared.row_GW) // count

        def apart(x: torch.Tensor) -> torch.Tensor:
            """[G KV, W per_kv, any] by rows: [R, KV, per_kv, any]."""
            x = x.view(count, kv_heads, room, per_kv, -1).transpose(1, 2).reshape(count * room, kv_heads, per_kv, -1)
            return x.index_select(0, shared.place_R)

        keys, values = self._common[layer]
        query = heads.index_select(0, shared.row_GW)[:, : self._spec.num_heads]
        query = query.reshape(count, room, kv_heads, per_kv, -1).transpose(1, 2)
        scores = self._scores(query.reshape(count * kv_heads, room * per_kv, -1), keys, self._common_mask)
        found = apart(weighted(scores.softmax(dim=-1), values))
        by_row = (self._rows, kv_heads, per_kv, -1)
        ahead = apart(scores.float().logsumexp(dim=-1, keepdim=True))
        ahead = ahead - own_scores.float().logsumexp(dim=-1, keepdim=True).view(by_row)
        # As many equal columns as a vector has lanes: the last elements of an array go another way and round otherwise.
        weight = ahead.expand(-1, -1, -1, _LANES).sigmoid()[..., :1]
        weight = weight.masked_fill(self._alone, 0.0)
        return own.view(by_row).lerp(found, weight.to(own.dtype)).view(own.shape)

    def _scores(self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(mask, query, keys, alpha=self._spec.head_dim**-0.5)

    def _hiding(self, places: torch.Tensor, num_keys: int, dtype: torch.dtype) -> torch.Tensor:
        """0 where a token at ``places`` [R, C] may look, -inf elsewhere: [R kv_heads, per_kv C, num_keys]."""
        rows, chunk = places.shape
        hidden = torch.arange(num_keys, device=places.device) > places[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
        shape = (rows, self._spec.num_kv_heads, self._per_kv, chunk, num_keys)
        return mask[:, None, None].expand(shape).reshape(shape[0] * shape[1], shape[2] * chunk, num_keys)
