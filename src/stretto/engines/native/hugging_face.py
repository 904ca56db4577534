"""The forward of a module of transformers over the engine's own KV cache: what runs every other family.

The module never sees a cache or a mask: it is given tokens with their positions, and calls an attention of ours in
every layer, which writes keys and values at each row's positions and reads the row's past. Nothing of the past is
computed again. Batch invariance is had as in ``model``: the same multiples of rows and keys, two batched products
around a softmax, rows independent; that a family's own code keeps to it is shown by the engine's start-up probe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from stretto.engines.native.cache import KVCache
from stretto.engines.native.forward import Sizes
from stretto.engines.native.matrix import Product
from stretto.engines.native.rounding import weighted
from stretto.engines.native.shared import SharedPast
from stretto.engines.native.window import Place, WeightWindow
from stretto.families.facts import max_positions_of
from stretto.families.modules import empty_causal, inspect_family, resolve_config
from stretto.types import Json

__all__ = ["HuggingFaceForward"]

CACHED_ATTENTION = "stretto_cached"
"""The name under which transformers finds the attention."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pass:
    """One pass over the module: which rows of the cache it continues, where their tokens go, what they may see."""

    cache: KVCache
    first: int
    place: torch.Tensor
    positions: torch.Tensor
    num_keys: int
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict[int | None, torch.Tensor])

    def mask(self, window: int | None) -> torch.Tensor:
        """0 where a token may look, -inf elsewhere: [R, 1, 1, C, num_keys] float32; made once a pass.

        A token at position p sees the keys at ``p - window < k <= p``.
        """
        if window not in self.masks:
            column = torch.arange(self.num_keys, device=self.positions.device)
            at = self.positions[:, :, None]
            hidden = column > at
            if window is not None:
                hidden |= column <= at - window
            mask = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))
            self.masks[window] = mask[:, None, None]
        return self.masks[window]


class HuggingFaceForward:
    """Computes with a module of transformers. A ``Forward``; its weights are the module."""

    shares_prompts = False

    def __init__(self, hf_config: Mapping[str, Json], dtype: torch.dtype, device: torch.device) -> None:
        """DataError if the family's code does not do what this needs."""
        self._hf_config = hf_config
        self._dtype, self._device = dtype, device
        self._shape = inspect_family(hf_config)
        limits = [n for n in (self._shape.max_positions, max_positions_of(hf_config)) if n is not None]
        self.sizes = Sizes(
            vocab_size=self._shape.vocab_size, hidden=self._shape.hidden, max_positions=min(limits, default=None)
        )
        self.products = tuple(
            Product(rows=rows, columns=columns, dtype=dtype, layout="plain", whole=True)
            for rows, columns in self._shape.matrices
        )
        AttentionInterface.register(CACHED_ATTENTION, cast(Callable[..., tuple[torch.Tensor, None]], _attention))

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache."""
        shape = (self._shape.num_layers, 2, rows, self._shape.num_kv_heads, length, self._shape.head_dim)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return KVCache(tensor, self._shape.num_heads // self._shape.num_kv_heads)

    def new_weights(self, *, invariant: bool) -> PreTrainedModel:
        """The module, its weights not yet filled. How it multiplies is its own affair."""
        return empty_causal(
            resolve_config(self._hf_config), attention=CACHED_ATTENTION, dtype=self._dtype, device=self._device
        )

    def window(self, weights: PreTrainedModel) -> WeightWindow:
        """The sink that fills the module; further names of a tied weight are passed over."""
        own = {name: Place(target=p.data, shape=tuple(p.shape)) for name, p in weights.named_parameters()}
        every = dict(weights.named_parameters(remove_duplicate=False))
        return WeightWindow(own, {name: tuple(p.shape) for name, p in every.items() if name not in own})

    def hidden(
        self,
        weights: PreTrainedModel,
        cache: KVCache,
        first: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        num_keys: int,
        shared: SharedPast | None = None,
    ) -> torch.Tensor:
        """As ``Forward.hidden``; the states are those after the last norm."""
        assert shared is None, "a shared past was given to a module of transformers"
        turn = _Pass(
            cache=cache, first=first, place=cache.places(first, positions), positions=positions, num_keys=num_keys
        )
        run = cast(Callable[..., Any], weights.base_model)
        return run(input_ids=ids, position_ids=positions, use_cache=False, turn=turn).last_hidden_state

    def settle(self, weights: PreTrainedModel) -> None:
        """As ``Forward.settle``: the module computes with what was written."""

    def logits(self, weights: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
        """As ``Forward.logits``."""
        head = cast(nn.Linear, weights.get_output_embeddings())
        return self._shape.logits.apply(head(hidden).float())


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    turn: _Pass,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Store key and value [R, kv_heads, C, D] in the cache of the module's layer; attend with query [R, H, C, D].

    Scores are ``softcap * tanh(scaling q k / softcap)`` where there is a cap. ``s_aux`` are sinks: one more score per
    head that takes weight and gives nothing (gpt-oss). Gives [R, C, H, D].
    """
    rows, heads, chunk, width = query.shape
    kv_heads, num_keys = key.shape[1], turn.num_keys
    shared = heads // kv_heads
    layer = turn.cache.tensor[cast(int, module.layer_idx)]
    fresh = torch.stack((key, value)).permute(1, 3, 0, 2, 4).reshape(-1, width)
    layer.view(-1, width).index_copy_(0, turn.place, fresh.to(layer.dtype))
    keys, values = layer[:, turn.first : turn.first + rows].flatten(1, 2)[:, :, :num_keys].unbind(0)
    # The heads that share a key-value head, and the tokens of a chunk, are rows of one product.
    together = query.to(layer.dtype).reshape(rows * kv_heads, shared * chunk, width)
    scores = torch.bmm(together, keys.transpose(1, 2)).float() * (width**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = (scores / softcap).tanh_().mul_(softcap)
    scores = scores.view(rows, kv_heads, shared, chunk, num_keys) + turn.mask(sliding_window)
    if s_aux is not None:
        sink = s_aux.float().view(1, kv_heads, shared, 1, 1).expand(rows, kv_heads, shared, chunk, 1)
        weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :num_keys]
    else:
        weights = scores.softmax(dim=-1)
    mixed = weighted(weights.to(layer.dtype).reshape(rows * kv_heads, shared * chunk, num_keys), values)
    mixed = mixed.view(rows, kv_heads, shared, chunk, width).permute(0, 3, 1, 2, 4)
    return mixed.reshape(rows, chunk, heads, width).to(query.dtype), None
