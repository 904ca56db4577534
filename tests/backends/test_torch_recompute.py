"""Activation checkpointing: the same gradients to the bit, from less that is kept."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.packing import microbatches
from stretto.backends.torch.recompute import recomputed
from stretto.config.backends import TorchBackendConfig
from stretto.config.models import LoraConfig
from stretto.types import Column, LossRef

FAMILIES = ["llama", "qwen2", "qwen3", "gemma3_text", "gemma2", "phi3", "gpt_neox", "gpt2", "cohere"]
POLICY = LossRef(use="clip", settings={"kl_coef": 0.1, "entropy_coef": 0.01})
VALUE = LossRef(use="value_clip")


def columns_of(batch):
    rng = np.random.default_rng(0)
    columns = [
        Column.per_token(name, batch, rng.normal(size=batch.num_tokens).astype(np.float32))
        for name in ("advantages", "returns", "ref_logprobs", "old_values")
    ]
    return (aggregation_weights(batch), *columns)


def gradients(path, batch, lora=None, **config):
    models = {
        "policy": ModelSpec(path=str(path), lora=lora),
        "critic": ModelSpec(path=str(path), lora=lora, value_head=True),
    }
    backend = TorchBackend(models, TorchBackendConfig(microbatch_tokens=60, **config), 0)
    for tensor in backend.tensors("critic"):
        if tensor.name == "value_head.weight":
            tensor.data.fill_(0.1)
    found = {}
    for model, loss in (("policy", POLICY), ("critic", VALUE)):
        backend.accumulate(model, batch, columns_of(batch), loss)
        found |= {(model, t.name): t.data.clone() for t in backend.gradients(model)}
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=3, alpha=6.0)])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_same_bits(model_folders, random_batch, family, lora, dtype):
    batch = random_batch(3, longest=20)
    plain, again = (
        gradients(model_folders[family], batch, lora, dtype=dtype, activation_checkpointing=on) for on in (False, True)
    )
    assert plain.keys() == again.keys()
    assert all(plain[name].any() for name in plain if ".lora_A." not in name[1])
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_nothing_inside_a_layer_is_kept(model_folders, random_batch, family):
    (pack,) = microbatches(random_batch(3, longest=30), 10**6, torch.device("cpu"))

    def kept(on):
        sizes = []
        spec = {"policy": ModelSpec(path=str(model_folders[family]))}
        backend = TorchBackend(spec, TorchBackendConfig(activation_checkpointing=on), 0)
        parameters = {p.data_ptr() for p in backend._models["policy"].network.parameters()}
        with saved_tensors_hooks(
            lambda x: sizes.append(x.data_ptr() not in parameters and x.numel()) or x, lambda x: x
        ):
            backend._hidden(backend._models["policy"].network, pack)
        return sum(sizes) / len(pack.input_ids_M)

    # A token's states are 32 wide; what is saved outside of the two layers is the last norm's and the gather's.
    assert kept(True) < 4 * 32 < 20 * 32 < kept(False)


def test_a_second_backward_pass_computes_again():
    x = torch.linspace(-1, 1, 7, requires_grad=True)
    calls = []
    out = recomputed(lambda: calls.append(1) or (x.sin() * x.exp()).sum(), x.device)
    first, second = (torch.autograd.grad(out, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert len(calls) == 3


def test_a_layer_that_fails_leaves_nothing_behind(model_folders, random_batch):
    batch = random_batch(3)
    config = TorchBackendConfig(activation_checkpointing=True)
    backend = TorchBackend({"policy": ModelSpec(path=str(model_folders["llama"]))}, config, 0)
    network = backend._models["policy"].network
    (pack,) = microbatches(batch, 10**6, torch.device("cpu"))
    whole = network.model.layers[1].mlp.down_proj
    network.model.layers[1].mlp.down_proj = torch.nn.Linear(5, 5)
    with pytest.raises(RuntimeError, match="shapes"):
        backend._hidden(network, pack)
    network.model.layers[1].mlp.down_proj = whole
    x = torch.ones(2, requires_grad=True)
    assert x.exp().grad_fn._saved_result is not None, "tensors are saved as ever"
    backend.accumulate("policy", batch, columns_of(batch), POLICY)
    assert backend.update("policy", 1e-3).skipped is None


def test_it_does_not_load_the_compiler():
    code = (
        "import sys, torch\n"
        "from stretto.backends.torch.recompute import recomputed\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "recomputed(lambda: x.exp().sum(), x.device).backward()\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
