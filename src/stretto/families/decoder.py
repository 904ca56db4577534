"""What a ``config.json`` says about a decoder of the Llama family, checked once: what Stretto's own forwards compute,
the engine's and the trainer's. Owns no tensors, and loads torch only where frequencies are computed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.errors import DataError, nearest
from stretto.families.facts import OWN_FORWARD
from stretto.types import Json

if TYPE_CHECKING:
    import torch

__all__ = ["DecoderSpec", "Rope", "own_decoder"]

_ROPE_TYPES = ("default", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864), plain or stretched the way of Llama 3.1."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def frequencies(self, head_dim: int) -> "torch.Tensor":
        """Angle per position of each pair of dimensions [head_dim / 2], float32.

        ``theta ** (-2 i / head_dim)``. Under ``llama3`` wavelengths beyond ``original / low_freq_factor`` are slowed
        by ``factor``, those under ``original / high_freq_factor`` are kept, and those between are blended linearly in
        the number of turns over the original context (Llama 3 report, arXiv:2407.21783).
        """
        import torch  # the only place: a recipe is checked without it

        plain = 1.0 / (self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
        if self.kind == "default":
            return plain
        turns = self.original_positions * plain / (2 * math.pi)
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = blend.clamp(0.0, 1.0)
        return (1.0 - blend) * plain / self.factor + blend * plain


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """The shape of a decoder: sizes, which projections have a bias, whether q and k are normalised per head."""

    family: str
    vocab_size: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_positions: int
    rope: Rope
    initializer_range: float

    @classmethod
    def from_config(cls, config: Mapping[str, Json]) -> "DecoderSpec":
        """Read a Hugging Face ``config.json``. What this engine would compute wrongly raises DataError."""
        family = str(config.get("model_type"))
        if family not in OWN_FORWARD:
            raise DataError(
                f"Stretto's own forward runs model_type {', '.join(OWN_FORWARD)}; config.json says {family!r}."
                f"{nearest(family, OWN_FORWARD)} Set engine.forward=auto."
            )
        _refuse_unsupported(config)
        heads = _size(config, "num_attention_heads")
        hidden = _size(config, "hidden_size")
        kv_heads = _size(config, "num_key_value_heads", default=heads)
        head_dim = _size(config, "head_dim", default=hidden // heads)
        if heads % kv_heads or head_dim % 2:
            raise DataError(
                f"The model's config.json gives {heads} attention heads, {kv_heads} key-value heads and head_dim "
                f"{head_dim}; heads must be a multiple of key-value heads and head_dim even. Correct the config."
            )
        attention_bias = bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=_size(config, "vocab_size"),
            hidden=hidden,
            intermediate=_size(config, "intermediate_size"),
            num_layers=_size(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=_number(config, "rms_norm_eps", 1e-6),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or attention_bias,
            out_bias=family != "qwen2" and attention_bias,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
            max_positions=_size(config, "max_position_embeddings", default=2048),
            rope=_rope(config),
            initializer_range=_number(config, "initializer_range", 0.02),
        )


def own_decoder(config: Mapping[str, Json]) -> DecoderSpec | None:
    """The decoder of ``config`` if Stretto has a forward of its own for it; transformers computes every other one."""
    try:
        return DecoderSpec.from_config(config)
    except DataError:
        return None


def _refuse_unsupported(config: Mapping[str, Json]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise DataError(f"Stretto's own forward computes hidden_act 'silu'; config.json says {activation!r}.")
    layer_types = config.get("layer_types")
    kinds = layer_types if isinstance(layer_types, list | tuple) else ()
    if config.get("use_sliding_window") or "sliding_attention" in kinds:
        raise DataError(
            "Stretto's own forward has no sliding-window attention; config.json asks for it. "
            "Set engine.forward=auto, or use_sliding_window to false if no sequence is longer than the window."
        )


def _rope(config: Mapping[str, Json]) -> Rope:
    """Both spellings: ``rope_parameters`` (transformers 5) and ``rope_theta`` with ``rope_scaling`` (before)."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise DataError(f"rope_parameters in config.json must be a mapping, got {found!r}. Correct the config.")
    kind = str(found.get("rope_type", found.get("type", "default")))
    if kind not in _ROPE_TYPES or any(isinstance(value, Mapping) for value in found.values()):
        raise DataError(
            f"Stretto's own forward knows the rope types {', '.join(_ROPE_TYPES)}, one for all layers; config.json has "
            f"{kind!r} with {sorted(found)}.{nearest(kind, _ROPE_TYPES)} Set engine.forward=auto."
        )
    partial = _number(found, "partial_rotary_factor", _number(config, "partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise DataError(f"Stretto's own forward rotates whole heads; config.json says partial_rotary_factor {partial}.")
    theta = _number(found, "rope_theta", _number(config, "rope_theta", 10000.0))
    if kind == "default":
        return Rope(theta=theta)
    return Rope(
        theta=theta,
        kind=kind,
        factor=_number(found, "factor", None),
        low_freq_factor=_number(found, "low_freq_factor", None),
        high_freq_factor=_number(found, "high_freq_factor", None),
        original_positions=_size(found, "original_max_position_embeddings"),
    )


def _size(config: Mapping[str, Json], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(
            f"{key} in config.json must be a whole number of at least 1, got {value!r}. Correct the config."
        )
    return value


def _number(config: Mapping[str, Json], key: str, default: float | None) -> float:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{key} in config.json must be a number, got {value!r}. Correct the config.")
    return float(value)
