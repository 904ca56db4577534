"""Adapters: what is trained, saved, published and exported, against peft's own loading and the base to the bit."""

import json
import random
import shutil
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.lora import BaseOrigin, count_adapters
from stretto.backends.torch.models import build_network
from stretto.backends.torch.state import hash_tensors
from stretto.config.backends import TorchBackendConfig
from stretto.config.models import LoraConfig
from stretto.errors import ConfigError, StoreError
from stretto.types import Column, LossRef

LORA = LoraConfig(rank=4, alpha=8.0)
BUILTIN = "builtin:tiny-llama-char"
FAMILIES = ["llama", "qwen2", "gemma3_text", "gpt2"]
SFT, POLICY, VALUE = LossRef(use="sft"), LossRef(use="clip"), LossRef(use="value_clip")
LOGPROBS = frozenset({"logprobs"})


def backend_of(path, *, lora=LORA, seed=0, critic=False, **config) -> TorchBackend:
    models = {
        "policy": ModelSpec(path=str(path), lora=lora),
        "reference": ModelSpec(path=str(path), lora=lora, trainable=False),
    }
    if critic:
        models["critic"] = ModelSpec(path=str(path), lora=lora, value_head=True)
    return TorchBackend(models, TorchBackendConfig(**config), seed)


def columns_of(batch, **extra):
    return (aggregation_weights(batch), *(Column.per_token(name, batch, values) for name, values in extra.items()))


def train(backend, random_batch, steps=(0, 1), *, critic=False) -> None:
    for step in steps:
        batch = random_batch(100 + step)
        backend.accumulate("policy", batch, columns_of(batch), SFT)
        assert backend.update("policy", 1e-2).skipped is None
        if critic:
            ones, zeros = (np.full(batch.num_tokens, x, np.float32) for x in (1.0, 0.0))
            backend.accumulate("critic", batch, columns_of(batch, returns=ones, old_values=zeros), VALUE)
            assert backend.update("critic", 1e-2).skipped is None


def logprobs(backend, batch, model="policy"):
    return backend.score(model, batch, LOGPROBS)[0].values


def tensors(backend, model="policy"):
    return {t.name: t.data.clone() for t in backend.tensors(model)}


def plain(model, batch) -> np.ndarray:
    """Log-probs of written tokens by a model of transformers or peft, one sequence at a time."""
    found = []
    for t in batch.trajectories:
        ids = torch.from_numpy(t.token_ids_T).long()[None]
        with torch.no_grad():
            logp = (model(input_ids=ids).logits[0, :-1].float() / t.temperature).log_softmax(-1)
        found.append(logp.gather(1, ids[0, 1:, None])[t.mask_T[1:] != 0, 0].numpy())
    return np.concatenate(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_adapters_are_the_base_to_the_bit(model_folders, random_batch, family):
    path, batch = model_folders[family], random_batch(3)
    base = TorchBackend({"policy": ModelSpec(path=str(path))}, TorchBackendConfig(), 0)
    adapted = backend_of(path)
    expected = logprobs(base, batch)
    assert np.array_equal(logprobs(adapted, batch), expected)
    assert adapted.weights_hash("policy") == base.weights_hash("policy") == adapted.weights_hash("reference")
    # training moves the policy alone: base and reference stay, to the bit
    train(adapted, random_batch)
    assert not np.array_equal(logprobs(adapted, batch), expected)
    assert np.array_equal(logprobs(adapted, batch, "reference"), expected)
    assert adapted.weights_hash("reference") == base.weights_hash("policy") != adapted.weights_hash("policy")


def test_only_adapters_have_gradients_and_moments(model_folders, random_batch, tmp_path):
    backend = backend_of(model_folders["llama"], critic=True)
    batch = random_batch(0)
    backend.accumulate("policy", batch, columns_of(batch), SFT)
    names = {t.name for t in backend.gradients("policy")}
    assert len(names) == 2 * 7 * 2
    assert all(".lora_A." in n or ".lora_B." in n for n in names)
    train(backend, random_batch, critic=True)
    assert {t.name for t in backend.tensors("critic")} >= {"value_head.weight"}
    backend.capture()(tmp_path)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    count = count_adapters(json.loads((model_folders["llama"] / "config.json").read_text()), LORA)
    assert sum(t.data.numel() for t in backend.tensors("policy")) > 2 * count
    for name, numbers in {
        "policy.safetensors": count,
        "reference.safetensors": count,
        "policy.optimizer.safetensors": 2 * count,
        "critic.safetensors": count + 32,
    }.items():
        assert 4 * numbers < sizes[name] < 4 * numbers + 10_000, name
    bases = {json.loads((tmp_path / f"{m}.base.json").read_text())["weights"] for m in ("policy", "reference")}
    assert len(bases) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_published_and_exported_is_the_trained_model(model_folders, random_batch, tmp_path, family):
    # pitfall 19
    backend, batch = backend_of(model_folders[family]), random_batch(4, temperature=0.7)
    before = tensors(backend)
    train(backend, random_batch, range(3))
    trained = logprobs(backend, batch)
    written = batch.mask != 0
    published = tensors(backend)
    base = TorchBackend({"policy": ModelSpec(path=str(model_folders[family]))}, TorchBackendConfig(), 0)
    assert list(published) == list(before) == [t.name for t in base.tensors("policy")]
    backend.export("policy", tmp_path / "merged")
    merged = TorchBackend({"policy": ModelSpec(path=str(tmp_path / "merged"))}, TorchBackendConfig(), 0)
    assert merged.weights_hash("policy") == hash_tensors(published.items())
    np.testing.assert_allclose(logprobs(merged, batch), trained, atol=2e-5)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    np.testing.assert_allclose(plain(model, batch), trained[written], atol=5e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("some", [False, True])
def test_adapters_are_loaded_by_peft(model_folders, random_batch, tmp_path, family, some):
    from peft import AutoPeftModelForCausalLM, PeftModel

    path, batch = model_folders[family], random_batch(4)
    few = ("c_attn",) if family == "gpt2" else ("q_proj", "mlp.down_proj")
    lora = LoraConfig(rank=3, alpha=5.0, export="adapter", targets=few if some else "auto")
    backend = backend_of(path, lora=lora)
    train(backend, random_batch, range(3))
    backend.export("policy", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    written, trained = batch.mask != 0, logprobs(backend, batch)
    assert np.abs(plain(base.eval(), batch) - trained[written]).max() > 1e-2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = PeftModel.from_pretrained(base, tmp_path).eval()
    np.testing.assert_allclose(plain(loaded, batch), trained[written], atol=5e-5)
    # the folder names its base itself
    alone = AutoPeftModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    np.testing.assert_allclose(plain(alone, batch), trained[written], atol=5e-5)
    named = {name for name, _ in alone.named_modules() if name.endswith("lora_A")}
    assert len(named) == len({t.name for t in _gradients(backend, batch)}) // 2


def _gradients(backend, batch):
    backend.accumulate("policy", batch, columns_of(batch), SFT)
    return list(backend.gradients("policy"))


def test_a_hub_base_is_named_with_its_commit(model_folders, tmp_path):
    lora = LoraConfig(export="adapter")
    origin = BaseOrigin(name="who/what", revision="a" * 40)
    spec = ModelSpec(path=str(model_folders["llama"]), lora=lora, origin=origin)
    TorchBackend({"policy": spec}, TorchBackendConfig(), 0).export("policy", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("who/what", "a" * 40)
    assert sorted(config["target_modules"]) == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )


def test_the_first_update_has_ratio_one(model_folders, random_batch):  # pitfall 18
    backend = backend_of(model_folders["llama"], microbatch_tokens=30)
    train(backend, random_batch)
    batch = random_batch(6, temperature=0.7)
    (old,) = backend.score("policy", batch, LOGPROBS)
    rows = iter([old.row(i) for i in range(len(batch.trajectories))])
    batch = type(batch)(
        groups=tuple(
            replace(g, trajectories=tuple(replace(t, logprobs_T=next(rows)) for t in g.trajectories))
            for g in batch.groups
        )
    )
    columns = columns_of(batch, advantages=np.ones(batch.num_tokens, np.float32), old_logprobs=old.values)
    metrics = backend.accumulate("policy", batch, columns, POLICY)
    assert metrics["sampler_gap_max"].value == 0
    assert metrics["ess"].value == 1
    assert metrics["clip_low"].value == metrics["clip_high"].value == 0


def test_adapters_learn_their_demonstrations(random_batch):
    backend, batch = backend_of(BUILTIN, lora=LoraConfig(rank=16)), random_batch(8, groups=1, siblings=1, longest=8)
    losses = []
    for _ in range(40):
        losses.append(-float(logprobs(backend, batch)[batch.mask != 0].mean()))
        backend.accumulate("policy", batch, columns_of(batch), SFT)
        backend.update("policy", 1e-2)
    # the tied head stays as it was drawn, so that no loss below 2.3 can be reached
    assert losses[-1] < losses[0] - 2, losses


def test_save_load_continue_equals_never_stopping(random_batch, tmp_path):  # pitfall 8
    never = backend_of(BUILTIN, critic=True, weight_decay=0.1)
    train(never, random_batch, critic=True)
    never.copy("policy", "reference")
    never.capture()(tmp_path)
    train(never, random_batch, (2, 3), critic=True)
    fresh = backend_of(BUILTIN, critic=True, weight_decay=0.1)
    train(fresh, random_batch, (8,), critic=True)
    fresh.load(tmp_path)
    assert fresh.weights_hash("policy") == fresh.weights_hash("reference")
    train(fresh, random_batch, (2, 3), critic=True)
    for model in ("policy", "reference", "critic"):
        assert fresh.weights_hash(model) == never.weights_hash(model), model


def test_after_a_warm_up_all_start_from_the_policy(random_batch):
    backend, batch = backend_of(BUILTIN, critic=True), random_batch(2)
    train(backend, random_batch)
    backend.copy("policy", "reference")
    backend.copy("policy", "critic")
    assert np.array_equal(logprobs(backend, batch, "reference"), logprobs(backend, batch))
    critic, policy = tensors(backend, "critic"), tensors(backend)
    assert not critic["value_head.weight"].any()
    assert all(torch.equal(critic[name], policy[name]) for name in critic if name != "value_head.weight")
    train(backend, random_batch, (5,))
    assert not np.array_equal(logprobs(backend, batch, "reference"), logprobs(backend, batch))


def test_a_checkpoint_stands_on_its_base(model_folders, random_batch, tmp_path):
    path = tmp_path / "base"
    shutil.copytree(model_folders["llama"], path)
    backend = backend_of(path)
    train(backend, random_batch)
    (tmp_path / "saved").mkdir()
    backend.capture()(tmp_path / "saved")
    with pytest.raises(StoreError, match=r"trained on model.lora.alpha=8.0, and it is 9.0 now. Bring that back"):
        backend_of(path, lora=LoraConfig(rank=4, alpha=9.0)).load(tmp_path / "saved")
    with pytest.raises(StoreError, match=r"policy.safetensors' holds the weights of another Model"):
        backend_of(path, lora=LoraConfig(rank=5)).load(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-3
    model.save_pretrained(path)
    with pytest.raises(StoreError, match=r"trained on other base weights than those that model.path has now"):
        backend_of(path).load(tmp_path / "saved")
    (tmp_path / "saved" / "policy.base.json").unlink()
    with pytest.raises(StoreError, match=r"policy.base.json' cannot be read"):
        backend_of(path).load(tmp_path / "saved")


def test_adapters_come_from_the_runs_seed_alone(model_folders):
    def down(seed, model="policy"):
        network = backend_of(model_folders["llama"], seed=seed, critic=True)._models[model].network
        return {n: p.detach().clone() for n, p in network.own_parameters().items() if ".lora_A." in n}

    one, again, other, critic = down(0), down(0), down(1), down(0, "critic")
    assert all(torch.equal(one[n], again[n]) for n in one)
    assert not any(torch.equal(one[n], other[n]) or torch.equal(one[n], critic[n]) for n in one)
    for name, weight in one.items():
        bound = weight.shape[1] ** -0.5
        assert 0.9 * bound < float(weight.abs().max()) <= bound, name


@pytest.mark.parametrize("path", [BUILTIN, "gemma3_text"])
def test_building_touches_no_global_random_state(model_folders, path):  # pitfall 22
    folder = str(model_folders.get(path, path))
    backend_of(folder, critic=True)  # whatever imports do is done
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    for spec in (ModelSpec(path=folder), ModelSpec(path=folder, value_head=True)):
        build_network(spec, seed=3, device=torch.device("cpu"))
    backend_of(folder, critic=True)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_state, strict=True))
    assert random.getstate() == python_state


def test_bfloat16_is_near_float32(model_folders, random_batch):
    batch = random_batch(5, longest=30)
    low, full = (backend_of(model_folders["llama"], dtype=d) for d in ("bfloat16", "float32"))
    train(full, random_batch)
    for name, parameter in low._models["policy"].network.own_parameters().items():
        parameter.data.copy_(full._models["policy"].network.own_parameters()[name])
    assert 0 < np.abs(logprobs(low, batch) - logprobs(full, batch)).mean() < 0.05
    for backend in (low, full):
        backend.accumulate("policy", batch, columns_of(batch), SFT)
    one, other = (torch.cat([t.data.reshape(-1) for t in b.gradients("policy")]) for b in (low, full))
    assert float(torch.nn.functional.cosine_similarity(one, other, dim=0)) > 0.99
    assert {p.dtype for p in low._models["policy"].network.parameters()} == {torch.float32}


def test_publication_makes_one_merged_tensor_at_a_time(model_folders):
    """Merged weights come as they are asked for, and the base never holds them: no memory grows."""
    backend = backend_of(model_folders["llama"])
    train_like = backend._models["policy"].network
    base = {n: p.clone() for n, p in train_like.named_parameters() if ".lora_" not in n}
    own = {p.data_ptr() for p in train_like.parameters()}
    fresh = 0
    for _ in range(3):
        for tensor in backend.tensors("policy"):
            fresh += tensor.data.data_ptr() not in own
    assert fresh == 3 * 14
    assert all(torch.equal(p, base[n]) for n, p in train_like.named_parameters() if n in base)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_counted_without_weights(model_folders, family):
    config = json.loads((model_folders[family] / "config.json").read_text())
    backend = backend_of(model_folders[family])
    own = backend._models["policy"].network.own_parameters()
    assert count_adapters(config, LORA) == sum(p.numel() for p in own.values())


def test_users_errors_are_sentences(model_folders, monkeypatch):
    with pytest.raises(ConfigError, match=r"targets has 'q_prj', and the linear maps .* Did you mean 'q_proj'"):
        backend_of(model_folders["llama"], lora=LoraConfig(targets=("q_prj",)))
    with pytest.raises(ConfigError, match=r"targets has 'lm_head', and the linear maps of the model are down_proj, "):
        backend_of(model_folders["llama"], lora=LoraConfig(targets=("lm_head",)))
    with pytest.raises(ValueError, match=r"model.lora.targets=\[\] leaves nothing to train"):
        LoraConfig(targets=())
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"needs the package peft. Install it: pip install 'stretto\[lora\]'"):
        backend_of(model_folders["llama"])
