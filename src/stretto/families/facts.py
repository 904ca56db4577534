"""What a ``config.json`` says about a family, in one spelling, and which kinds of model cannot be run. Loads no torch.

What cannot be known from the file is found out by ``modules.inspect_family``, which looks at the model's code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.errors import DataError
from stretto.types import Json

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OWN_FORWARD", "LogitShape", "check_config", "max_positions_of", "spelled_alike"]

OWN_FORWARD = ("llama", "qwen2", "qwen3")
"""The families for which engine and trainer have a forward of their own (``decoder``)."""

_SPELLINGS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "ffn_dim": "intermediate_size",
}
"""Older names of the same sizes (GPT-2, OPT)."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SCORER = "ForSequenceClassification"
_MOVING_ROPES = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitShape:
    """What is done to a head's logits ``l``: ``cap * tanh(scale * l / cap)``, or ``scale * l`` without a cap.

    The cap is Gemma 2's (arXiv:2408.00118, section 2); Cohere and Granite scale.
    """

    scale: float = 1.0
    cap: float | None = None

    def apply(self, logits: "Tensor") -> "Tensor":
        """Logits of the model."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


def spelled_alike(config: Mapping[str, Json]) -> Mapping[str, Json]:
    """``config`` with sizes under the names most families use."""
    renamed = {new: config[old] for old, new in _SPELLINGS.items() if config.get(old) is not None}
    hidden = renamed.get("hidden_size")
    if "n_inner" in config and isinstance(hidden, int):
        renamed.setdefault("intermediate_size", 4 * hidden)  # GPT-2's, where its config leaves it open
    return {**config, **renamed}


def max_positions_of(config: Mapping[str, Json]) -> int | None:
    """Longest sequence the model can be given, in tokens; None if the file does not say.

    Frequencies of ``dynamic`` and ``longrope`` change for a whole batch once one of its sequences is longer than the
    original context, so that one sequence's log-probs would depend on another: such a model ends there.
    """
    found = spelled_alike(config).get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) in _MOVING_ROPES:
        original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        found = original if original is not None else found
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def check_config(config: Mapping[str, Json], path: str) -> None:
    """DataError if the file itself tells that the model cannot be run, with the reason and what to do."""
    kind = config.get("model_type")
    problem = None
    if not isinstance(kind, str):
        problem = f"has model_type {kind!r} in its config.json, which must be a name: correct the config"
    elif isinstance(config.get("text_config"), Mapping):
        problem = f"({kind}) has more than text inside: save its language model alone and give that folder"
    elif config.get("is_encoder_decoder"):
        problem = f"({kind}) has an encoder, and only decoders are trained: choose a causal language model"
    elif config.get("quantization_config") is not None:
        problem = "has quantised weights, which cannot be trained: give the folder of the full weights"
    elif any(isinstance(n := config.get(key), int) and n > 1 for key in _EXPERTS):
        problem = (
            f"({kind}) is a mixture of experts, whose products change with a token's company, so that sampler and "
            "trainer would disagree: choose a dense model"
        )
    scorer = next((str(a) for a in _listed(config.get("architectures")) if str(a).endswith(_SCORER)), None)
    if problem is None and scorer is not None:
        problem = (
            f"({scorer}) gives a number and writes no text: judge by it (reward.use=reward_model with "
            "reward.with.path), or give the folder of a language model"
        )
    if problem:
        raise DataError(f"the model in {path!r} {problem}.")


def _listed(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list | tuple) else ()
