"""What a model says about itself: its ``config.json``, and the configuration of built-in Models that have no folder.
No weights are read here and no torch is loaded, so that a plan or an engine can be made from it.
"""

import json
from collections.abc import Mapping

from stretto.data.locations import TINY, folder_of
from stretto.errors import DataError
from stretto.families.facts import check_config
from stretto.types import Json

__all__ = ["check_weights", "load_hf_config"]

_MADE: Mapping[str, Mapping[str, Json]] = {
    TINY: {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
}
"""Built-in Models whose weights are drawn from the seed: this one has 1,062,528 parameters, its embeddings tied."""


def load_hf_config(path: str) -> Mapping[str, Json]:
    """The configuration of ``path`` (``builtin:NAME`` or a local folder) as in its ``config.json``.

    DataError if there is none, if it cannot be read, or if it tells of a kind of model that cannot be run.
    """
    folder = folder_of(path)
    if folder is None:
        return _MADE[path]
    file = folder / "config.json"
    if not file.is_file() and (folder / "adapter_config.json").is_file():
        raise DataError(
            f"the model folder {path!r} holds adapters (LoRA) and not the model they stand on. Export the run with "
            "model.lora.export=merged, or merge them with peft, and give that folder."
        )
    if not file.is_file():
        raise DataError(f"the model folder {path!r} has no config.json. Give a folder in the Hugging Face layout.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{str(file)!r} cannot be read as JSON: {error}.") from error
    if not isinstance(config, dict):
        raise DataError(f"{str(file)!r} must hold a mapping, got {type(config).__name__}. Correct the config.")
    check_config(config, path)
    return config


def check_weights(path: str) -> None:
    """DataError if the model at ``path`` has no weights to load; nothing is loaded."""
    folder = folder_of(path)
    if folder is None or list(folder.glob("*.safetensors")):
        return
    raise DataError(
        f"the model folder {path!r} has no *.safetensors file: its weights are missing. Download them, or "
        "convert them to safetensors; other formats are not read."
    )
