"""From weights by Hugging Face name to the fused tensors Stretto's own forward reads. Owns the layout.

Layout. Rows of q, k and v are stacked in one matrix, gate and up in another. Inside each head of q and k the pairs of
dimensions that rope turns together, ``(i, i + D/2)`` in a checkpoint, are stored side by side as ``(2i, 2i + 1)``, so
that a rotation is one complex product. q and k are permuted alike, which leaves every product of the two unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from stretto.engines.native.window import Place
from stretto.families.decoder import DecoderSpec

__all__ = ["LayerWeights", "Weights", "places_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWeights:
    """One layer: ``qkv`` is [(heads + 2 kv_heads) head_dim, hidden], ``qk_norm`` [heads + kv_heads, head_dim]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """All tensors of a model. With tied embeddings ``head`` is ``embed``."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor

    @classmethod
    def empty(cls, spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> "Weights":
        """Memory for a model, not yet filled."""

        def new(*shape: int, when: bool = True) -> torch.Tensor | None:
            return torch.empty(shape, dtype=dtype, device=device) if when else None

        def need(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        q_dim = spec.num_heads * spec.head_dim
        qkv_dim = q_dim + 2 * spec.num_kv_heads * spec.head_dim
        layers = tuple(
            LayerWeights(
                input_norm=need(spec.hidden),
                qkv=need(qkv_dim, spec.hidden),
                qkv_bias=new(qkv_dim, when=spec.qkv_bias),
                qk_norm=new(spec.num_heads + spec.num_kv_heads, spec.head_dim, when=spec.qk_norm),
                out=need(spec.hidden, q_dim),
                out_bias=new(spec.hidden, when=spec.out_bias),
                post_norm=need(spec.hidden),
                gate_up=need(2 * spec.intermediate, spec.hidden),
                gate_up_bias=new(2 * spec.intermediate, when=spec.mlp_bias),
                down=need(spec.hidden, spec.intermediate),
                down_bias=new(spec.hidden, when=spec.mlp_bias),
            )
            for _ in range(spec.num_layers)
        )
        embed = need(spec.vocab_size, spec.hidden)
        head = embed if spec.tied else need(spec.vocab_size, spec.hidden)
        return cls(embed=embed, layers=layers, norm=need(spec.hidden), head=head)


def places_of(spec: DecoderSpec, weights: Weights) -> Mapping[str, Place]:
    """Where each named tensor of a checkpoint goes."""
    places: dict[str, Place] = {}

    def put(name: str, target: torch.Tensor | None) -> None:
        if target is not None:
            places[name] = Place(target=target, shape=tuple(target.shape))

    def rotate(name: str, target: torch.Tensor, shape: tuple[int, ...], rest: int = 1) -> None:
        places[name] = Place(target=target.view(-1, spec.head_dim // 2, 2, rest), shape=shape, rotary=True)

    q = spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    put("model.embed_tokens.weight", weights.embed)
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}"
        put(f"{at}.input_layernorm.weight", layer.input_norm)
        for kind, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            if fused is not None:
                columns = tuple(fused.shape[1:])
                rotate(f"{at}.self_attn.q_proj.{kind}", fused[:q], (q, *columns), *columns)
                rotate(f"{at}.self_attn.k_proj.{kind}", fused[q : q + kv], (kv, *columns), *columns)
                put(f"{at}.self_attn.v_proj.{kind}", fused[q + kv :])
        if layer.qk_norm is not None:
            rotate(f"{at}.self_attn.q_norm.weight", layer.qk_norm[: spec.num_heads], (spec.head_dim,))
            rotate(f"{at}.self_attn.k_norm.weight", layer.qk_norm[spec.num_heads :], (spec.head_dim,))
        put(f"{at}.self_attn.o_proj.weight", layer.out)
        put(f"{at}.self_attn.o_proj.bias", layer.out_bias)
        put(f"{at}.post_attention_layernorm.weight", layer.post_norm)
        for kind, fused in (("weight", layer.gate_up), ("bias", layer.gate_up_bias)):
            if fused is not None:
                put(f"{at}.mlp.gate_proj.{kind}", fused[: spec.intermediate])
                put(f"{at}.mlp.up_proj.{kind}", fused[spec.intermediate :])
        put(f"{at}.mlp.down_proj.weight", layer.down)
        put(f"{at}.mlp.down_proj.bias", layer.down_bias)
    put("model.norm.weight", weights.norm)
    if not spec.tied:
        put("lm_head.weight", weights.head)
    return places
