"""What is resolved before a run is made: prompts that a model can take, whatever their names."""

import json

import numpy as np
import pytest

from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.load import recipe_from_mapping
from stretto.errors import DataError
from stretto.runtime.build import Given, prepare
from stretto.types import Prompt


def job_of(*prompts: Prompt, **sections: object):
    tree = {"steps": 1, "prompts": {"type": "python", "held_out": 0}, "evaluate": {"at_start": False}, **sections}
    return prepare(recipe_from_mapping(tree), Given(prompts=prompts))


def prompt_of(*token_ids: int, uid: str = "odd") -> Prompt:
    return Prompt(uid=uid, text="", token_ids=np.asarray(token_ids, np.int32), data={"answer": "1"})


@pytest.mark.parametrize("wrong", [(1, 100), (1, 5000), (-1, 5)])
def test_token_ids_that_the_model_lacks_are_refused(wrong):
    with pytest.raises(DataError, match=f"prompt 'odd' has token ids from {min(wrong)} to {max(wrong)}, .* 0 to 99"):
        job_of(prompt_of(1, 99, uid="good"), prompt_of(*wrong))


def test_a_tokenizer_that_knows_more_than_the_model_is_noticed(tmp_path):
    import stretto.data.tokens as tokens

    tokens.builtin_tokenizer().save(tmp_path)
    config = {**load_hf_config("builtin:tiny-llama-char"), "vocab_size": 20}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"are 0 to 19. Use the model's own tokenizer"):
        prepare(recipe_from_mapping({"steps": 1, "model": {"path": str(tmp_path)}}), Given())


def test_any_string_may_be_a_uid():
    fake = {"engine": {"type": "fake"}, "backend": {"type": "fake"}}
    hashes = {job_of(prompt_of(1, 5, uid=uid), **fake).data_hash for uid in ("\ud800", "é", "\u2028", "x" * 9999)}
    assert len(hashes) == 4
