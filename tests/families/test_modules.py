"""What families are found to be, and which are refused by name before anything runs."""

import pytest
import torch
from transformers import AutoConfig

from stretto.errors import DataError
from stretto.families.facts import LogitShape, max_positions_of, spelled_alike
from stretto.families.modules import empty_causal, inspect_family, resolve_config

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def config_of(family, **more):
    return AutoConfig.for_model(family, **{**SMALL, **more}).to_dict()


@pytest.mark.parametrize(
    ("family", "logits"),
    [
        ("gemma2", LogitShape(cap=30.0)),
        ("cohere", LogitShape(scale=0.0625)),
        ("granite", LogitShape(scale=0.5)),
        ("olmo2", LogitShape()),
    ],
)
def test_what_is_done_to_logits(family, logits):
    more = {"logits_scaling": 2.0} if family == "granite" else {}
    shape = inspect_family(config_of(family, **more))
    assert shape.logits == logits
    assert (shape.num_layers, shape.num_kv_heads, shape.hidden, shape.vocab_size) == (2, 2, 64, 97)
    x = torch.tensor([3.0])
    scaled = x * logits.scale
    expected = scaled if logits.cap is None else logits.cap * torch.tanh(scaled / logits.cap)
    torch.testing.assert_close(logits.apply(x), expected)


@pytest.mark.parametrize(
    ("family", "more", "words"),
    [
        ("phi", {}, "'phi' cannot be run: its head is not one matrix without a bias"),
        ("bloom", {}, "'bloom' cannot be run: of its 2 layers, 0 call an attention"),
        ("mamba", {"num_hidden_layers": 2}, "'mamba' cannot be run"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "'lfm2' cannot be run: it has layers of the kind conv"),
        ("bert", {}, "'bert' cannot be run"),
        ("t5", {}, "has an encoder"),
        ("qwen3_moe", {}, "mixture of experts"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(family, more, words):
    with pytest.raises(DataError, match=words):
        inspect_family(config_of(family, **more))


def test_modules_are_made_without_global_randomness_and_with_their_fixed_buffers():
    before = torch.get_rng_state()
    config = resolve_config(config_of("gemma3_text"))
    model = empty_causal(config, attention="eager", dtype=torch.bfloat16, device=torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert float(model.get_input_embeddings().embed_scale) == 8.0
    inverse = model.base_model.rotary_emb.sliding_attention_inv_freq
    assert inverse.dtype == torch.float32 and float(inverse[0]) == 1.0


def test_sizes_have_one_spelling_and_moving_frequencies_end_at_their_original_context():
    gpt2 = spelled_alike({"n_embd": 8, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": None})
    assert (gpt2["hidden_size"], gpt2["intermediate_size"], max_positions_of(gpt2)) == (8, 32, 32)
    longrope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert max_positions_of({"max_position_embeddings": 131072, "rope_parameters": longrope}) == 4096
    assert max_positions_of({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 100}) == 100
    assert max_positions_of({}) is None
