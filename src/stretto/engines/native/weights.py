"""From weights by Hugging Face name to the fused tensors Stretto's own forward reads. Owns the layout.

Layout. Rows of q, k and v are stacked in one matrix, gate and up in another. Inside each head of q and k the pairs of
dimensions that rope turns together, ``(i, i + D/2)`` in a checkpoint, are stored side by side as ``(2i, 2i + 1)``, so
that a rotation is one complex product. q and k are permuted alike, which leaves every product of the two unchanged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from stretto.engines.native.matrix import Matrix, Product, layout_of, rows_alike
from stretto.engines.native.window import Place
from stretto.families.decoder import DecoderSpec

__all__ = ["LayerWeights", "Weights", "places_of", "products_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWeights:
    """One layer: ``qkv`` is [(heads + 2 kv_heads) head_dim, hidden], ``qk_norm`` [heads + kv_heads, head_dim]."""

    input_norm: torch.Tensor
    qkv: Matrix
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    out: Matrix
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: Matrix
    gate_up_bias: torch.Tensor | None
    down: Matrix
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """All tensors of a model. With tied embeddings ``head`` stands on ``embed``, or is a copy in another type."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Matrix

    @classmethod
    def empty(
        cls,
        spec: DecoderSpec,
        dtype: torch.dtype,
        device: torch.device,
        *,
        head_dtype: torch.dtype,
        invariant: bool = True,
    ) -> "Weights":
        """Memory for a model, not yet filled. invariant: a row's bits are the same among any number of rows (that the
        products have a multiple for) in the calling thread."""

        def vector(*shape: int, when: bool = True) -> torch.Tensor | None:
            return torch.empty(shape, dtype=dtype, device=device) if when else None

        def need(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        products = products_of(spec, dtype, head_dtype, device)

        def matrix(name: str, dense: torch.Tensor | None = None) -> Matrix:
            own = products[name]
            most = rows_alike(own, device, torch.get_num_threads()).most if invariant else None
            return Matrix(own.rows, own.columns, own.dtype, device, layout=own.layout, most=most, dense=dense)

        qkv_dim = products["qkv"].rows
        layers = tuple(
            LayerWeights(
                input_norm=need(spec.hidden),
                qkv=matrix("qkv"),
                qkv_bias=vector(qkv_dim, when=spec.qkv_bias),
                qk_norm=vector(spec.num_heads + spec.num_kv_heads, spec.head_dim, when=spec.qk_norm),
                out=matrix("out"),
                out_bias=vector(spec.hidden, when=spec.out_bias),
                post_norm=need(spec.hidden),
                gate_up=matrix("gate_up"),
                gate_up_bias=vector(2 * spec.intermediate, when=spec.mlp_bias),
                down=matrix("down"),
                down_bias=vector(spec.hidden, when=spec.mlp_bias),
            )
            for _ in range(spec.num_layers)
        )
        embed = need(spec.vocab_size, spec.hidden)
        stands = embed if spec.tied and head_dtype == dtype else None
        head = matrix("head", stands)
        return cls(embed=embed, layers=layers, norm=need(spec.hidden), head=head)

    def begin(self) -> None:
        """Have memory for every weight, to be filled."""
        for matrix in self._matrices():
            matrix.begin()

    def settle(self) -> None:
        """Be ready for products, now that every weight is there."""
        for matrix in self._matrices():
            matrix.settle()

    def _matrices(self) -> Iterator[Matrix]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
        yield self.head


def products_of(
    spec: DecoderSpec, dtype: torch.dtype, head_dtype: torch.dtype, device: torch.device
) -> dict[str, Product]:
    """A layer's matrices and the head of such a model."""

    def product(name: str, rows: int, columns: int) -> Product:
        own = head_dtype if name == "head" else dtype
        return Product(rows=rows, columns=columns, dtype=own, layout=layout_of(rows, columns, own, device))

    return {name: product(name, *shape) for name, shape in _shapes(spec).items()}


def _shapes(spec: DecoderSpec) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's matrices and of the head."""
    q_dim = spec.num_heads * spec.head_dim
    return {
        "qkv": (q_dim + 2 * spec.num_kv_heads * spec.head_dim, spec.hidden),
        "out": (spec.hidden, q_dim),
        "gate_up": (2 * spec.intermediate, spec.hidden),
        "down": (spec.hidden, spec.intermediate),
        "head": (spec.vocab_size, spec.hidden),
    }


def places_of(spec: DecoderSpec, weights: Weights) -> Mapping[str, Place]:
    """Where each named tensor of a checkpoint goes, between ``begin`` and ``settle`` of the weights."""
    places: dict[str, Place] = {}

    def put(name: str, target: torch.Tensor | None, also: torch.Tensor | None = None) -> None:
        if target is not None:
            places[name] = Place(target=target, shape=tuple(target.shape), also=also)

    def rotate(name: str, target: torch.Tensor, shape: tuple[int, ...], rest: int = 1) -> None:
        places[name] = Place(target=target.view(-1, spec.head_dim // 2, 2, rest), shape=shape, rotary=True)

    q = spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    head = weights.head.dense
    copied = spec.tied and head is not weights.embed
    put("model.embed_tokens.weight", weights.embed, also=head if copied else None)
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}"
        put(f"{at}.input_layernorm.weight", layer.input_norm)
        for kind, fused in (("weight", layer.qkv.dense), ("bias", layer.qkv_bias)):
            if fused is not None:
                columns = tuple(fused.shape[1:])
                rotate(f"{at}.self_attn.q_proj.{kind}", fused[:q], (q, *columns), *columns)
                rotate(f"{at}.self_attn.k_proj.{kind}", fused[q : q + kv], (kv, *columns), *columns)
                put(f"{at}.self_attn.v_proj.{kind}", fused[q + kv :])
        if layer.qk_norm is not None:
            rotate(f"{at}.self_attn.q_norm.weight", layer.qk_norm[: spec.num_heads], (spec.head_dim,))
            rotate(f"{at}.self_attn.k_norm.weight", layer.qk_norm[spec.num_heads :], (spec.head_dim,))
        put(f"{at}.self_attn.o_proj.weight", layer.out.dense)
        put(f"{at}.self_attn.o_proj.bias", layer.out_bias)
        put(f"{at}.post_attention_layernorm.weight", layer.post_norm)
        for kind, fused in (("weight", layer.gate_up.dense), ("bias", layer.gate_up_bias)):
            if fused is not None:
                put(f"{at}.mlp.gate_proj.{kind}", fused[: spec.intermediate])
                put(f"{at}.mlp.up_proj.{kind}", fused[spec.intermediate :])
        put(f"{at}.mlp.down_proj.weight", layer.down.dense)
        put(f"{at}.mlp.down_proj.bias", layer.down_bias)
    put("model.norm.weight", weights.norm)
    if not spec.tied:
        put("lm_head.weight", head)
    return places
