"""The reading of config.json: refusals, spellings of rope, frequencies against transformers."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from stretto.errors import DataError
from stretto.families.decoder import DecoderSpec

BASE = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "llama4"}, ["llama4", "Did you mean 'llama'", "qwen2"]),
        ({"hidden_act": "gelu"}, ["gelu"]),
        ({"use_sliding_window": True}, ["sliding"]),
        ({"layer_types": ["sliding_attention"]}, ["sliding"]),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ["yarn", "default, llama3"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["linear"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["full_attention"]),
        ({"rope_parameters": {"rope_type": "llama3"}}, ["factor"]),
        ({"rope_parameters": 3}, ["mapping"]),
        ({"partial_rotary_factor": 0.5}, ["0.5"]),
        ({"hidden_size": "32"}, ["hidden_size", "'32'"]),
        ({"vocab_size": None}, ["vocab_size", "None"]),
        ({"rms_norm_eps": "x"}, ["rms_norm_eps", "'x'"]),
        ({"num_key_value_heads": 3}, ["4 attention heads", "3 key-value heads"]),
        ({"head_dim": 7}, ["head_dim 7"]),
    ],
)
def test_what_it_would_compute_wrongly_is_refused(change, words):
    with pytest.raises(DataError) as caught:
        DecoderSpec.from_config({**BASE, **change})
    assert all(word in str(caught.value) for word in words), caught.value


def test_defaults_follow_the_family():
    spec = DecoderSpec.from_config(BASE)
    assert (spec.head_dim, spec.num_kv_heads, spec.qkv_bias, spec.qk_norm) == (8, 4, False, False)
    assert DecoderSpec.from_config({**BASE, "model_type": "qwen2"}).qkv_bias
    assert not DecoderSpec.from_config({**BASE, "model_type": "qwen2"}).out_bias
    assert DecoderSpec.from_config({**BASE, "model_type": "qwen3"}).qk_norm


def test_old_and_new_spellings_of_rope_agree():
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    new = DecoderSpec.from_config({**BASE, "rope_parameters": LLAMA3})
    old = DecoderSpec.from_config({**BASE, "rope_theta": 500000.0, "rope_scaling": scaling})
    assert new.rope == old.rope
    assert DecoderSpec.from_config({**BASE, "rope_theta": 5e5}).rope.theta == 5e5


def test_llama3_frequencies_are_those_of_transformers():
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=LLAMA3)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    spec = DecoderSpec.from_config(config.to_dict())
    torch.testing.assert_close(spec.rope.frequencies(spec.head_dim), expected, rtol=1e-6, atol=0)
