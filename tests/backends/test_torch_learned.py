"""What is learned from pairs and from teachers, through the real backend: no cut changes the gradient, which is that of
a plain implementation; a teacher is known by a hash; a reward model is exported as transformers has them."""

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.losses import divergence_of
from stretto.backends.torch import logprobs as logprobs_module
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.packing import microbatches
from stretto.config.backends import TorchBackendConfig
from stretto.errors import StoreError
from stretto.types import Batch, Column, LossRef
from stretto.workflows.preferences import closed, preferred

DISTILL = LossRef(
    use="distill", settings={"divergence": "jsd", "beta": 0.3, "entropy_coef": 0.01}, teachers=("teacher",)
)
DPO = LossRef(use="dpo", settings={"beta": 0.5, "label_smoothing": 0.1}, unit="group")
REWARD = LossRef(use="bradley_terry", settings={"center_coef": 0.05}, unit="group")


@cache
def backend_of(policy: str, teacher: str, budget: int, dtype: str = "float32") -> TorchBackend:
    models = {
        "policy": ModelSpec(path=policy),
        "reward": ModelSpec(path=policy, value_head=True),
        "teacher": ModelSpec(path=teacher, trainable=False, fixed=True),
    }
    config = TorchBackendConfig(microbatch_tokens=budget, dtype=dtype)  # type: ignore[arg-type]
    backend = TorchBackend(models, config, 0)
    for tensor in backend.tensors("reward"):
        if tensor.name == "value_head.weight":  # at 0 the trunk has no gradient
            tensor.data.copy_(torch.linspace(-1, 1, tensor.data.numel()).reshape(tensor.data.shape))
    return backend


def backend_for(model_folders, budget=10**6, **config) -> TorchBackend:
    return backend_of(str(model_folders["llama"]), str(model_folders["qwen3"]), budget, **config)


def gradient(backend: TorchBackend, model: str) -> torch.Tensor:
    found = torch.cat([t.data.double().reshape(-1) for t in backend.gradients(model)])
    backend.update(model, 0.0)
    return found


def pairs(random_batch, seed=0, groups=5) -> Batch:
    return random_batch(seed, groups=groups, siblings=2)


def last_of(batch: Batch) -> Column:
    keep = np.zeros(batch.num_tokens, np.uint8)
    keep[batch.offsets[1:] - 1] = 1
    return Column.per_token("keep", batch, keep)


def dpo_columns(batch: Batch) -> tuple[Column, ...]:
    rng = [np.random.default_rng([t.key.draw, t.key.sample]).normal(size=len(t.mask_T)) for t in batch.trajectories]
    ref = Column.per_token("ref_logprobs", batch, np.where(batch.mask, -3 - np.concatenate(rng), np.nan))
    return ref, preferred(batch), aggregation_weights(batch, "prompt_mean")


def reward_columns(batch: Batch) -> tuple[Column, ...]:
    return preferred(batch), aggregation_weights(batch, "prompt_mean", keep=last_of(batch))


CASES = {
    "dpo": ("policy", DPO, dpo_columns, lambda batch: batch),
    "reward": ("reward", REWARD, reward_columns, closed),
    "distill": ("policy", DISTILL, lambda batch: (aggregation_weights(batch),), lambda batch: batch),
    "top_k": (
        "policy",
        replace(DISTILL, settings={"divergence": "forward_kl", "top_k": 3}),
        lambda batch: (aggregation_weights(batch),),
        lambda batch: batch,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_no_cut_changes_the_gradient(model_folders, random_batch, case, monkeypatch):  # pitfall 29
    model, ref, columns, change = CASES[case]
    batch = change(pairs(random_batch))
    found = []
    for budget, chunk in ((10**6, 2**24), (13, 200)):  # 200 elements: five tokens of 40 logits at a time
        monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", chunk)
        backend = backend_for(model_folders, budget)
        metrics = backend.accumulate(model, batch, columns(batch), ref)
        found.append((metrics, gradient(backend, model)))
    (whole_metrics, whole), (cut_metrics, cut) = found
    assert whole.norm() > 0
    assert (cut - whole).norm() <= 2e-6 * whole.norm(), (cut - whole).norm() / whole.norm()
    for name in whole_metrics:
        assert cut_metrics[name].value == pytest.approx(whole_metrics[name].value, rel=1e-4, abs=1e-6), name
    if ref.unit == "group":
        assert whole_metrics["pairs/margin"].count == len(batch.groups)
        assert 0 < whole_metrics["pairs/accuracy"].value < 1


def test_no_pack_cuts_a_pair(random_batch):
    batch = pairs(random_batch)
    packs = list(microbatches(batch, 13, torch.device("cpu"), "group"))
    assert len(packs) > 2
    assert sum(pack.num_groups for pack in packs) == len(batch.groups)
    for pack in packs:
        assert torch.bincount(pack.groups_R).tolist() == [2] * pack.num_groups
    assert any(p.num_groups < p.num_rows for p in microbatches(batch, 10**6, torch.device("cpu")))


def plain_logits(folder, row, temperature=1.0) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model(torch.from_numpy(row.token_ids_T).long()[None]).logits[0] / temperature, model


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("divergence", "top_k"), [("reverse_kl", None), ("forward_kl", None), ("jsd", 4)])
def test_distillation_is_that_of_a_plain_forward(model_folders, random_batch, divergence, top_k, temperature):
    batch = random_batch(1, groups=1, siblings=1, temperature=temperature)
    (row,) = batch.trajectories
    settings = {"divergence": divergence, "top_k": top_k}
    backend = backend_for(model_folders)
    ref = LossRef(use="distill", settings=settings, teachers=("teacher",))
    metrics = backend.accumulate("policy", batch, (aggregation_weights(batch),), ref)
    ours = {t.name: t.data.clone() for t in backend.gradients("policy")}
    backend.update("policy", 0.0)

    logits, model = plain_logits(model_folders["llama"], row, temperature)
    with torch.no_grad():
        teacher, _ = plain_logits(model_folders["qwen3"], row, temperature)
    written = np.flatnonzero(row.mask_T) - 1
    of = partial(divergence_of, divergence=divergence, top_k=top_k)
    loss = of(F.log_softmax(logits[written], -1), F.log_softmax(teacher[written], -1)).mean()
    loss.backward()
    assert metrics["loss"].value == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["divergence"].value == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=2e-6, msg=name)


def test_dpo_is_that_of_a_plain_forward(model_folders, random_batch):
    batch = pairs(random_batch, 2, groups=3)
    columns = dpo_columns(batch)
    backend = backend_for(model_folders)
    metrics = backend.accumulate("policy", batch, columns, DPO)
    ours = {t.name: t.data.clone() for t in backend.gradients("policy")}
    backend.update("policy", 0.0)

    model = AutoModelForCausalLM.from_pretrained(model_folders["llama"], dtype=torch.float32)
    ratios = []
    for index, row in enumerate(batch.trajectories):
        ids = torch.from_numpy(row.token_ids_T).long()
        logp = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        ratio = logp - torch.from_numpy(columns[0].row(index)[1:])
        ratios.append(ratio[torch.from_numpy(row.mask_T[1:]) != 0].sum())
    h = 0.5 * torch.stack([c - r for c, r in zip(ratios[::2], ratios[1::2], strict=True)])
    loss = (-0.9 * F.logsigmoid(h) - 0.1 * F.logsigmoid(-h)).mean()
    loss.backward()
    assert metrics["loss"].value == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=2e-6, msg=name)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_a_reward_model_is_exported_as_a_classifier_that_says_the_same(model_folders, random_batch, tmp_path, family):
    backend = backend_of(str(model_folders[family]), str(model_folders[family]), 10**6)
    batch = pairs(random_batch, 3)
    ends = closed(batch)
    (values,) = backend.score("reward", ends, frozenset({"values"}))
    backend.export("reward", tmp_path)
    model, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.num_labels == 1
    model.config.pad_token_id = None  # the last token is the end of a row, whatever it is
    for index, row in enumerate(batch.trajectories):
        said = model(torch.from_numpy(row.token_ids_T).long()[None]).logits[0, 0].item()
        assert values.row(index)[-1] == pytest.approx(said, rel=1e-4, abs=1e-5)


def test_a_teacher_is_known_by_a_hash_and_not_saved(model_folders, random_batch, tmp_path):  # pitfall 8
    backend = backend_for(model_folders)
    backend.capture()(tmp_path)
    assert not (tmp_path / "teacher.safetensors").exists()
    before = backend.weights_hash("teacher")
    backend.load(tmp_path)
    assert backend.weights_hash("teacher") == before
    backend_of(str(model_folders["llama"]), str(model_folders["llama"]), 10**6).load(tmp_path)  # another on purpose
    known = tmp_path / "teacher.base.json"
    known.write_text(known.read_text().replace(before[:8], "00000000"))
    with pytest.raises(StoreError, match=r"Model 'teacher' has other weights than when .*what teacher\.path names"):
        backend.load(tmp_path)


def test_a_teacher_with_a_longer_vocabulary_is_cut_to_the_policys():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=generator) for shape in ((6, 4), (9, 4)))
    shape = logprobs_module.LogitShape()
    policy = logprobs_module.Head(hidden, weight[:5], shape)
    teacher = logprobs_module.Head(hidden, weight, shape)
    found = logprobs_module.over_vocabulary(
        (policy, teacher), torch.ones(6), partial(divergence_of, divergence="jsd"), None
    )
    assert float(found.abs().max()) < 1e-6


def test_bfloat16_is_near_float32(model_folders, random_batch):
    batch = pairs(random_batch, 4)
    columns = (aggregation_weights(batch),)
    exact, rough = (
        backend_for(model_folders, dtype=dtype).accumulate("policy", batch, columns, DISTILL)["loss"].value
        for dtype in ("float32", "bfloat16")
    )
    for dtype in ("float32", "bfloat16"):
        backend_for(model_folders, dtype=dtype).update("policy", 0.0)
    assert math.isclose(exact, rough, rel_tol=0.05)
