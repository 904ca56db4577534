"""Parameter counts against the library's own models, and what is refused."""

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from stretto.errors import DataError
from stretto.plan import ModelFacts

SMALL = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = [
    LlamaConfig(**SMALL),
    LlamaConfig(**{**SMALL, "num_key_value_heads": None}, tie_word_embeddings=True),
    LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    LlamaConfig(**SMALL, head_dim=20),
    Qwen2Config(**SMALL),
    Qwen2Config(**SMALL, tie_word_embeddings=True),
    Qwen3Config(**SMALL),
    Qwen3Config(**SMALL, head_dim=12, attention_bias=True, tie_word_embeddings=True),
    Qwen3Config(),
    Qwen2Config(),
    LlamaConfig(),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("written", ["whole", "differences"])
def test_counts_every_parameter(config, written):
    import torch

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_dict()))
    # Files hold only what differs from the family's defaults.
    mapping = config.to_dict() if written == "whole" else {**config.to_diff_dict(), "model_type": config.model_type}
    facts = ModelFacts.from_config(mapping)
    assert facts.parameters == sum(p.numel() for p in model.parameters())


def test_a_critic_has_a_value_for_each_hidden_state_instead_of_a_vocabulary():
    tied = ModelFacts.from_config({**LlamaConfig(**SMALL, tie_word_embeddings=True).to_dict()})
    critic = ModelFacts.from_config(LlamaConfig(**SMALL).to_dict(), value_head=True)
    assert critic.parameters == tied.parameters + 48


def test_other_families_are_counted_by_the_caller_or_guessed():
    config = {**SMALL, "model_type": "olmo2"}
    guess = ModelFacts.from_config(config)
    assert guess.parameters == ModelFacts.from_config({**config, "model_type": "llama"}).parameters
    counted = ModelFacts.from_config(config, counted=12_345)
    assert counted.parameters == 12_345
    critic = ModelFacts.from_config(config, counted=12_345, value_head=True)
    assert critic.parameters == 12_345 - 100 * 48 + 48


def test_refuses_broken_sizes():
    with pytest.raises(DataError, match=r"model_type 'lama'\) has no vocab_size"):
        ModelFacts.from_config({"model_type": "lama"})
    with pytest.raises(DataError, match=r"hidden_size=0. It must be a positive whole number"):
        ModelFacts.from_config({"model_type": "llama", "hidden_size": 0})
    with pytest.raises(DataError, match=r"num_hidden_layers='4'"):
        ModelFacts.from_config({"model_type": "llama", "num_hidden_layers": "4"})
