"""Families without a forward of Stretto's own: scores and gradients against plain transformers, exports."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.config.backends import TorchBackendConfig
from stretto.errors import DataError
from stretto.types import LossRef

FAMILIES = ["gemma3_text", "gemma2", "mistral", "phi3", "olmo2", "gpt_neox", "gpt2", "cohere", "granite"]
SFT = LossRef(use="sft")


def backend_of(path, **config) -> TorchBackend:
    models = {"policy": ModelSpec(path=str(path)), "critic": ModelSpec(path=str(path), value_head=True)}
    return TorchBackend(models, TorchBackendConfig(**config), 0)


def plain_logprobs(model, trajectory):
    ids = torch.from_numpy(trajectory.token_ids_T).long()[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / trajectory.temperature
    return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_transformers(model_folders, random_batch, family, tmp_path):
    batch = random_batch(5, longest=30, temperature=0.7)
    backend = backend_of(model_folders[family], microbatch_tokens=100)
    (scored,) = backend.score("policy", batch, frozenset({"logprobs"}))
    backend.accumulate("policy", batch, (aggregation_weights(batch),), SFT)
    ours = {t.name: t.data.clone() for t in backend.gradients("policy")}
    model = AutoModelForCausalLM.from_pretrained(
        model_folders[family], dtype=torch.float32, attn_implementation="eager"
    )
    loss = torch.zeros(())
    for row, t in enumerate(batch.trajectories):
        logp = plain_logprobs(model.eval(), t)
        written = t.mask_T[1:] != 0
        np.testing.assert_allclose(
            scored.row(row)[1:][written], logp.detach().numpy()[written], atol=2e-5, err_msg=family
        )
        loss = loss - (logp * torch.from_numpy(t.mask_T[1:])).sum() / batch.num_written
    loss.backward()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert ours.keys() == named.keys()
    whole = torch.cat([g.reshape(-1).double() for g in named.values()])
    gap = torch.cat([(ours[name] - grad).reshape(-1).double() for name, grad in named.items()])
    assert gap.norm() <= 1e-5 * whole.norm(), float(gap.norm() / whole.norm())
    # an export is an ordinary folder again, and a critic has the same trunk
    backend.update("policy", 1e-2)
    backend.export("policy", tmp_path)
    assert backend_of(tmp_path).weights_hash("policy") == backend.weights_hash("policy")
    (values,) = backend.score("critic", batch, frozenset({"values"}))
    assert not values.values.any()


def test_a_family_that_is_not_what_it_says_is_refused(model_folders, tmp_path):
    """Gemma's attention may be set to look ahead, which no file says in a way that is read here."""
    import json
    import shutil

    shutil.copytree(model_folders["gemma3_text"], tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_bidirectional_attention": True}))
    with pytest.raises(DataError, match=r"'gemma3_text' cannot be run: its attention is not plainly causal"):
        backend_of(tmp_path / "model")
