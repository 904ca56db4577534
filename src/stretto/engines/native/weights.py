"""From weights by Hugging Face name to the fused tensors the forward reads. Owns the layout and one update window.

Layout. Rows of q, k and v are stacked in one matrix, gate and up in another. Inside each head of q and k the pairs of
dimensions that rope turns together, ``(i, i + D/2)`` in a checkpoint, are stored side by side as ``(2i, 2i + 1)``, so
that a rotation is one complex product. q and k are permuted alike, which leaves every product of the two unchanged.
"""

from dataclasses import dataclass

import torch

from stretto.engines.native.spec import ModelSpec
from stretto.errors import EngineError, nearest
from stretto.roles import NamedTensor

__all__ = ["LayerWeights", "WeightWindow", "Weights"]


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
    def empty(cls, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> "Weights":
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """Where a named tensor of ``shape`` goes. A ``rotary`` target is viewed as [heads, head_dim / 2, 2, rest]."""

    target: torch.Tensor
    shape: tuple[int, ...]
    rotary: bool = False


class WeightWindow:
    """The sink of one update window. ``write`` may be called from any one thread while the window is open."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        self._tied_head = (spec.vocab_size, spec.hidden) if spec.tied else None
        self._places = _places(spec, weights)
        self._written: set[str] = set()
        self._open = True

    def write(self, tensor: NamedTensor) -> None:
        """Copy one weight into place, cast to the engine's dtype.

        ``lm_head.weight`` of a model with tied embeddings is checked and passed over: the embedding is the truth.
        """
        if not self._open:
            raise EngineError(f"{tensor.name} was written after its update window closed. Open a new window.")
        tied = tensor.name == "lm_head.weight" and self._tied_head is not None
        place = None if tied else self._places.get(tensor.name)
        if place is None and not tied:
            raise EngineError(
                f"The engine's model has no weight {tensor.name!r}.{nearest(tensor.name, self._places)} "
                "Publish the weights of the model the engine was made for."
            )
        shape = place.shape if place else self._tied_head
        data = tensor.data
        if not isinstance(data, torch.Tensor) or tuple(data.shape) != shape:
            came = tuple(data.shape) if isinstance(data, torch.Tensor) else type(data).__name__
            raise EngineError(
                f"{tensor.name} must be a tensor of shape {shape}, got {came}. "
                "Publish the weights of the model the engine was made for."
            )
        if place:
            self._copy(place, data)
            self._written.add(tensor.name)

    def close(self) -> None:
        """No more writes."""
        self._open = False

    def check_complete(self) -> None:
        """Raise EngineError naming the weights that were not written."""
        missing = [name for name in self._places if name not in self._written]
        if missing:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise EngineError(
                f"{len(missing)} of {len(self._places)} weights were not published: {shown}. "
                "A window must write every weight of the model."
            )

    @torch.inference_mode()
    def _copy(self, place: _Place, data: torch.Tensor) -> None:
        if not place.rotary:
            place.target.copy_(data)
            return
        pairs, _, rest = place.target.shape[1:]
        # [heads, D/2, 2, rest] <- [heads, 2, D/2, rest]; the one head of a per-head norm goes to all heads.
        place.target.copy_(data.reshape(-1, 2, pairs, rest).transpose(1, 2))


def _places(spec: ModelSpec, weights: Weights) -> dict[str, _Place]:
    places: dict[str, _Place] = {}

    def put(name: str, target: torch.Tensor | None) -> None:
        if target is not None:
            places[name] = _Place(target=target, shape=tuple(target.shape))

    def rotate(name: str, target: torch.Tensor, shape: tuple[int, ...], rest: int = 1) -> None:
        places[name] = _Place(target=target.view(-1, spec.head_dim // 2, 2, rest), shape=shape, rotary=True)

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
