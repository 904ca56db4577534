"""Stretto's own decoder of the Llama family as a trainable module, its parts under their Hugging Face names. The engine
computes the same with ``stretto.engines.native.model``. Owns the computation; no files, no packing.
"""

import torch
from torch import Tensor, nn

from stretto.backends.torch.attention import attend, picked
from stretto.backends.torch.kernels import Turns, gated, rms_norm, turns_of
from stretto.backends.torch.layout import AttentionLayout
from stretto.backends.torch.packing import Pack
from stretto.backends.torch.parts import Parts
from stretto.families.decoder import DecoderSpec
from stretto.families.facts import LogitShape

__all__ = ["UnfilledLinear", "decoder_parts", "fill_from_seed"]


def decoder_parts(spec: DecoderSpec, device: torch.device | str = "cpu") -> Parts:
    """The decoder with memory for its weights, not filled (with ``meta``: without). No random state is read."""
    with torch.device(device):
        trunk = Trunk(spec)
        head = UnfilledLinear(spec.hidden, spec.vocab_size, bias=False)
    if spec.tied:
        head.weight = trunk.embed_tokens.weight
    return Parts(
        trunk_name="model",
        trunk=trunk,
        layers=tuple(trunk.layers),
        head_name="lm_head",
        head=head,
        tied=spec.tied,
        logits=LogitShape(),
        run=_run,
    )


def fill_from_seed(parts: Parts, spec: DecoderSpec, padding: int | None, seed: int) -> None:
    """Weights from a generator of its own: normal(0, initializer_range), norms 1; biases, padding embedding 0."""
    generator = torch.Generator().manual_seed(seed)
    whole = nn.ModuleDict({parts.trunk_name: parts.trunk, parts.head_name: parts.head})
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(0.0 if name.endswith(".bias") else 1.0)
            else:
                parameter.normal_(0.0, spec.initializer_range, generator=generator)
        if padding is not None:
            parts.trunk.get_parameter("embed_tokens.weight")[padding].zero_()


class UnfilledLinear(nn.Linear):
    """A linear map whose memory is left as it is: torch would fill it from the global generator."""

    def reset_parameters(self) -> None:
        """Nothing: what it holds is loaded or drawn afterwards."""


class _UnfilledEmbedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """As above."""


def _run(trunk: nn.Module, pack: Pack) -> Tensor:
    return trunk(pack.input_ids_M, pack.position_ids_M, pack.layout, pack.predicting_P)


class Trunk(nn.Module):
    """Everything but the head. The order of registration is that of transformers, so that names come in its order."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self._spec = spec
        self.embed_tokens = _UnfilledEmbedding(spec.vocab_size, spec.hidden)
        self.layers = nn.ModuleList(_Layer(spec) for _ in range(spec.num_layers))
        self.norm = _Norm(spec.hidden, spec.norm_eps)

    def forward(self, ids_M: Tensor, positions_M: Tensor, layout: AttentionLayout, wanted_P: Tensor) -> Tensor:
        """Hidden states of the tokens at ``wanted_P`` after the last norm [P, C], float32.

        The last layer computes its keys and values for every token, and what follows its attention for these alone.
        Under autocast products are in its type.
        """
        state = self.embed_tokens(ids_M)
        frequencies = self._spec.rope.frequencies(self._spec.head_dim).to(state.device)
        turns = turns_of(positions_M[:, None].float() * frequencies)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            state = layer(state, turns, layout, wanted_P if i == last else None)
        return self.norm(state, torch.float32)


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self._eps = eps

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return rms_norm(x, self.weight, self._eps, dtype)


class _Attention(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = UnfilledLinear(spec.hidden, queries, bias=spec.qkv_bias)
        self.k_proj = UnfilledLinear(spec.hidden, keys, bias=spec.qkv_bias)
        self.v_proj = UnfilledLinear(spec.hidden, keys, bias=spec.qkv_bias)
        self.o_proj = UnfilledLinear(queries, spec.hidden, bias=spec.out_bias)
        if spec.qk_norm:
            self.q_norm = _Norm(spec.head_dim, spec.norm_eps)
            self.k_norm = _Norm(spec.head_dim, spec.norm_eps)
        self._width, self._normed = spec.head_dim, spec.qk_norm

    def forward(self, x: Tensor, turns: Turns, layout: AttentionLayout, wanted: Tensor | None) -> Tensor:
        query, key, value = (
            projection(x).view(x.shape[0], -1, self._width) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self._normed:
            query, key = self.q_norm(query, query.dtype), self.k_norm(key, key.dtype)
        return self.o_proj(picked(attend(query, key, value, layout, turns=turns).flatten(1), wanted))


class _Mlp(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate_proj = UnfilledLinear(spec.hidden, spec.intermediate, bias=spec.mlp_bias)
        self.up_proj = UnfilledLinear(spec.hidden, spec.intermediate, bias=spec.mlp_bias)
        self.down_proj = UnfilledLinear(spec.intermediate, spec.hidden, bias=spec.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))


class _Layer(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.self_attn = _Attention(spec)
        self.mlp = _Mlp(spec)
        self.input_layernorm = _Norm(spec.hidden, spec.norm_eps)
        self.post_attention_layernorm = _Norm(spec.hidden, spec.norm_eps)

    def forward(self, x: Tensor, turns: Turns, layout: AttentionLayout, wanted: Tensor | None) -> Tensor:
        low = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if low else x.dtype
        x = picked(x, wanted) + self.self_attn(self.input_layernorm(x, dtype), turns, layout, wanted)
        return x + self.mlp(self.post_attention_layernorm(x, dtype))
