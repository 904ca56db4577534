"""Stretto's own decoder: states and gradients of transformers' modules, weights of every kind of folder, and a start
that loads neither transformers nor torch's compiler."""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from stretto.backends.torch import kernels
from stretto.backends.torch.attention import gather_rows
from stretto.backends.torch.models import ModelSpec, build_network
from stretto.backends.torch.packing import microbatches
from stretto.errors import DataError

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES = {
    "llama3 rope, tied": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "biases everywhere": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "one key-value head": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 1, "rms_norm_eps": 1e-3}),
    "wide heads": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16, "tie_word_embeddings": False}),
}


def saved(make, folder):
    """A model whose norms and biases are not what they start as, and the folder it is saved in."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = make()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model.eval()


def compare(network, plain, batch):
    """Predicted log-probs and every weight's gradient, packed by ours and one sequence at a time by theirs."""
    (pack,) = microbatches(batch, 2**20, CPU)
    hidden = gather_rows(network.hidden(pack), pack.source)
    ours = F.linear(hidden, network.head.weight).log_softmax(-1).gather(1, pack.targets_N[:, None])[:, 0]
    theirs = []
    for row in batch.trajectories:
        ids = torch.from_numpy(row.token_ids_T).long()[None]
        logits = plain(input_ids=ids, use_cache=False).logits[0, :-1].float()
        written = torch.from_numpy(row.mask_T[1:] != 0)
        theirs.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None])[written, 0])
    theirs = torch.cat(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    weights = torch.linspace(-1, 1, len(ours))
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    expected = dict(plain.named_parameters())
    assert [name for name, _ in network.named_parameters()] == list(expected)
    for name, parameter in network.named_parameters():
        want = expected[name].grad
        assert float((parameter.grad - want).norm() / want.norm()) < 2e-5, name


@pytest.mark.parametrize("case", CASES)
def test_states_and_gradients_are_those_of_transformers(case, random_batch, tmp_path):
    model, config, settings = CASES[case]
    plain = saved(lambda: model(config(**{**SIZES, **settings})), tmp_path)
    compare(build_network(ModelSpec(path=str(tmp_path)), seed=0, device=CPU), plain, random_batch(4))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_families_too(family, model_folders, random_batch):
    path = str(model_folders[family])
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    compare(build_network(ModelSpec(path=path), seed=0, device=CPU), plain, random_batch(5))


def test_bfloat16_stays_near_float32(model_folders, random_batch):
    network = build_network(ModelSpec(path=str(model_folders["qwen3"])), seed=0, device=CPU)
    (pack,) = microbatches(random_batch(6), 2**20, CPU)
    with torch.no_grad():
        exact = network.hidden(pack)
        with torch.autocast("cpu", torch.bfloat16):
            low = network.hidden(pack)
    assert low.dtype == torch.float32
    assert 1e-4 < float((low - exact).norm() / exact.norm()) < 2e-2


class Plain:
    """The kernels' formulas, written for autograd."""

    @staticmethod
    def rms_norm(x, weight):
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)

    @staticmethod
    def rotated(x, angles):
        first, second = x.chunk(2, dim=-1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    @staticmethod
    def gated(gate, up):
        return F.silu(gate) * up


def test_kernels_and_their_gradients():
    draw = torch.Generator().manual_seed(0)
    states, heads, weight = (torch.randn(shape, generator=draw).requires_grad_() for shape in ((7, 6), (7, 3, 6), (6,)))
    gate, up = (torch.randn(7, 6, generator=draw).requires_grad_() for _ in range(2))
    angles = torch.randn(7, 3, generator=draw)
    pairs = [
        (kernels.rms_norm(x, weight, 1e-5, torch.float32), Plain.rms_norm(x, weight), (x, weight))
        for x in (states, heads)
    ]
    pairs.append((kernels.rotated(heads, *kernels.turns_of(angles)), Plain.rotated(heads, angles), (heads,)))
    pairs.append((kernels.gated(gate, up), Plain.gated(gate, up), (gate, up)))
    for ours, plain, inputs in pairs:
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)
        back = torch.randn(ours.shape, generator=draw)
        gradients = zip(torch.autograd.grad(ours, inputs, back), torch.autograd.grad(plain, inputs, back), strict=True)
        for got, want in gradients:
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


# Folders: what is loaded from files of every kind.


def weights_of(path):
    return build_network(ModelSpec(path=str(path)), seed=0, device=CPU).named_weights()


def rewritten(folder, target, change, **config):
    """A copy of ``folder`` with other tensors."""
    target.mkdir()
    settings = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**settings, **config}))
    save_file(change(load_file(folder / "model.safetensors")), target / "model.safetensors", {"format": "pt"})
    return target


def test_shards_types_and_old_names_load_alike(model_folders, tmp_path):
    folder = model_folders["llama"]
    plain = weights_of(folder)
    shards = tmp_path / "shards"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(shards, max_shard_size="10KB")
    assert len(list(shards.glob("model-*.safetensors"))) > 1
    (shards / "adapter_model.safetensors").write_bytes(b"nothing that the index names")
    old = rewritten(
        folder, tmp_path / "old", lambda t: {**t, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    )
    for other in (shards, old):
        assert all(torch.equal(plain[name], weight) for name, weight in weights_of(other).items())
    low = rewritten(folder, tmp_path / "low", lambda t: {name: x.bfloat16() for name, x in t.items()})
    assert all(torch.equal(plain[name].bfloat16().float(), weight) for name, weight in weights_of(low).items())


def test_a_tied_head_may_be_stored_once_by_either_name_or_twice(model_folders, tmp_path):
    folder = model_folders["qwen2"]
    plain = weights_of(folder)
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    kinds = {
        "head": lambda t: {(head if name == embedding else name): x for name, x in t.items()},
        "both": lambda t: {**t, head: t[embedding].clone()},
        "trunk": lambda t: {name.removeprefix("model."): x for name, x in t.items()},
    }
    for name, change in kinds.items():
        found = weights_of(rewritten(folder, tmp_path / name, change))
        assert all(torch.equal(plain[key], weight) for key, weight in found.items()), name
    two = rewritten(folder, tmp_path / "two", lambda t: {**t, head: t[embedding] + 1})
    with pytest.raises(DataError, match=r"two that differ. Set tie_word_embeddings to false there"):
        weights_of(two)
    assert not torch.equal(
        weights_of(rewritten(two, tmp_path / "apart", dict, tie_word_embeddings=False))[head], plain[head]
    )


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (None, "neither model.safetensors nor model.safetensors.index.json"),
        ("{", "is no index of weights"),
        ('{"weight_map": 3}', "is no index of weights"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "names '../model.safetensors', which is not a file"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors"),
    ],
)
def test_an_index_that_cannot_be_followed(model_folders, tmp_path, index, words):
    folder = rewritten(model_folders["llama"], tmp_path / "model", dict)
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(DataError, match="cannot be loaded") as caught:
        weights_of(folder)
    assert words in str(caught.value)


def test_a_training_of_an_own_family_loads_no_transformers_and_no_compiler():
    code = """
import sys
import numpy as np
from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.config.backends import TorchBackendConfig
from stretto.types import Batch, Group, Key, LossRef, Prompt, Span, Trajectory
path = "builtin:tiny-llama-char"
specs = {"policy": ModelSpec(path=path), "critic": ModelSpec(path=path, value_head=True)}
backend = TorchBackend(specs, TorchBackendConfig(), 0)
ids, mask = np.arange(1, 9, dtype=np.int32), np.repeat(np.array([0, 1], np.uint8), 4)
row = Trajectory(key=Key(0, 0), token_ids_T=ids, mask_T=mask, logprobs_T=np.zeros(8, np.float32),
                 versions=(Span(0, 4),), finish="stop", temperature=1.0)
batch = Batch(groups=(Group(draw=0, prompt=Prompt(uid="0", text="", token_ids=ids[:4]), trajectories=(row,)),))
backend.accumulate("policy", batch, (aggregation_weights(batch),), LossRef(use="sft"))
assert backend.update("policy", 1e-3).skipped is None
print([name for name in ("transformers", "torch._dynamo", "sympy", "peft") if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.stdout.strip() == "[]", out.stdout + out.stderr
