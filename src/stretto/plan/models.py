"""What a plan needs to know of a Model, read from its Hugging Face configuration: shapes and parameter counts.

Counts are exact for Llama (SmolLM is one), Qwen2 and Qwen3. For any other family they are what the caller has counted,
or else an estimate of a gated decoder without biases. Owns no weights and no memory sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.errors import DataError, nearest

__all__ = ["ModelFacts"]

_SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
# Files of a configuration leave out what equals the family's default, so these are part of the format.
_DEFAULTS: Mapping[str, Mapping[str, int | bool | None]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": None,
        "tie_word_embeddings": False,
    },
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
}
_USUAL: Mapping[str, int | bool | None] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The shape of a decoder. ``counted`` are the parameters of a language model whose family is not known here.

    ``value_head``: a critic, with hidden -> 1 (no bias) in place of the vocabulary."""

    family: str
    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    value_head: bool = False
    counted: int | None = None

    @classmethod
    def from_config(
        cls, hf_config: Mapping[str, object], *, value_head: bool = False, counted: int | None = None
    ) -> "ModelFacts":
        """From the mapping in ``config.json``; a size that is no positive int raises DataError.

        ``counted``: all parameters of the language model, tied ones once, where the family is not known here.
        """
        family = str(hf_config.get("model_type", ""))
        config = {**_DEFAULTS.get(family, _USUAL), **hf_config}
        for key in _SHAPE:
            if key not in config:
                raise DataError(
                    f"the model's config.json (model_type {family!r}) has no {key}.{nearest(key, hf_config)} "
                    "Complete it."
                )
        vocab, hidden, intermediate, layers, heads = (_size(config, key) for key in _SHAPE)
        attention_bias = config.get("attention_bias") is True
        return cls(
            family=family,
            vocab_size=vocab,
            hidden=hidden,
            intermediate=intermediate,
            layers=layers,
            heads=heads,
            kv_heads=heads if config["num_key_value_heads"] is None else _size(config, "num_key_value_heads"),
            head_dim=hidden // heads if config["head_dim"] is None else _size(config, "head_dim"),
            tied=config["tie_word_embeddings"] is True,
            # Qwen2 always has biases on queries, keys and values, and none on the output.
            qkv_bias=attention_bias or family == "qwen2",
            o_bias=attention_bias and family != "qwen2",
            mlp_bias=config.get("mlp_bias") is True and family == "llama",
            qk_norm=family == "qwen3",
            value_head=value_head,
            counted=counted,
        )

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        q, kv, h, i = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden, self.intermediate
        attention = h * q + 2 * h * kv + q * h
        biases = self.qkv_bias * (q + 2 * kv) + self.o_bias * h + self.mlp_bias * (2 * i + h)
        norms = 2 * h + self.qk_norm * 2 * self.head_dim
        return attention + 3 * h * i + biases + norms

    @property
    def parameters(self) -> int:
        """All parameters; tied embeddings count once."""
        embedding = self.vocab_size * self.hidden
        if self.counted is not None:
            return self.counted + self.value_head * (self.hidden - (0 if self.tied else embedding))
        head = self.hidden if self.value_head else 0 if self.tied else embedding
        return embedding + self.layers * self.layer_parameters + self.hidden + head

    @property
    def kv_values_per_token(self) -> int:
        """Numbers in the KV cache for one token: layers x 2 x kv_heads x head_dim."""
        return self.layers * 2 * self.kv_heads * self.head_dim


def _size(config: Mapping[str, object], key: str) -> int:
    value = config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise DataError(f"the model's config.json has {key}={value!r}. It must be a positive whole number.")
    return value
