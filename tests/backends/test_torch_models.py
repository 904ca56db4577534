"""Models: the built-in one, folders of every family, and what is said about folders that cannot be used."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from stretto.backends.torch.hf_config import load_hf_config
from stretto.backends.torch.models import ModelSpec, build_network
from stretto.backends.torch.state import hash_tensors
from stretto.errors import DataError

CPU = torch.device("cpu")
BUILTIN = "builtin:tiny-llama-char"


def test_the_builtin_model():
    network = build_network(ModelSpec(path=BUILTIN), seed=0, device=CPU)
    assert sum(p.numel() for p in network.parameters()) == 1_062_528
    config = load_hf_config(BUILTIN)
    assert (config["vocab_size"], config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (
        100,
        0,
        1,
        2,
    )
    names = list(network.named_weights())
    assert names[0] == "model.embed_tokens.weight"
    assert names[-1] == "lm_head.weight"
    assert not network.training


def test_initial_weights_depend_on_the_seed_alone():  # pitfall 22
    before = torch.get_rng_state()
    hashes = [
        hash_tensors(build_network(ModelSpec(path=BUILTIN), seed=seed, device=CPU).named_weights().items())
        for seed in (0, 0, 1)
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert hashes[0] == hashes[1] != hashes[2]
    # the same bits in every process, machine and release
    weight = build_network(ModelSpec(path=BUILTIN), seed=0, device=CPU).named_weights()["model.embed_tokens.weight"]
    assert weight[0].abs().sum() == 0
    assert weight[1:].std().item() == pytest.approx(0.02, rel=0.05)


def test_a_critic_starts_from_the_same_trunk_at_value_zero():
    policy = build_network(ModelSpec(path=BUILTIN), seed=0, device=CPU)
    critic = build_network(ModelSpec(path=BUILTIN, value_head=True), seed=0, device=CPU)
    trunk = {n: p for n, p in critic.named_parameters() if not n.startswith("value_head")}
    own = dict(policy.named_parameters())
    assert trunk.keys() == own.keys()
    assert all(torch.equal(p, own[n]) for n, p in trunk.items())
    assert critic.value_head.weight.abs().sum() == 0
    assert "lm_head.weight" not in critic.named_weights()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_folders_load_without_touching_the_global_generator(model_folders, family):
    before = torch.get_rng_state()
    network = build_network(ModelSpec(path=str(model_folders[family]), trainable=False), seed=3, device=CPU)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(p.requires_grad for p in network.parameters())


def test_configs_are_read_without_torch():
    code = (
        "import sys\nfrom stretto.backends.torch.hf_config import load_hf_config\n"
        f"load_hf_config({BUILTIN!r})\nprint([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def broken(folder, tmp_path, change):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    change(copy)
    return str(copy)


def set_config(**values):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **values}))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), r"cannot be read as JSON"),
        (lambda f: (f / "model.safetensors").unlink(), r"no \*.safetensors file: its weights are missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"rubbish"), r"cannot be loaded"),
        (set_config(model_type="lama"), r"model_type 'lama', which transformers does not know. Did you mean 'llama'"),
        (set_config(model_type="mixtral", num_local_experts=8), r"\(mixtral\) is a mixture of experts"),
        (set_config(text_config={"a": 1}), r"\(llama\) has more than text inside"),
        (set_config(is_encoder_decoder=True), r"has an encoder"),
        (set_config(quantization_config={"bits": 4}), r"has quantised weights"),
        (set_config(model_type=7), r"model_type 7 in its config.json, which must be a name"),
        (set_config(num_hidden_layers=3), r"do not fit its config.json: missing model.layers.2"),
        (set_config(num_hidden_layers=1), r"do not fit its config.json: unexpected model.layers.1"),
        (set_config(intermediate_size=64), r"cannot be loaded|do not fit"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(model_folders, tmp_path, change, message):  # pitfall 35
    path = broken(model_folders["llama"], tmp_path, change)
    with pytest.raises(DataError, match=message) as caught:
        build_network(ModelSpec(path=path), seed=0, device=CPU)
    assert "model" in str(caught.value)


def test_unknown_paths():
    with pytest.raises(DataError, match=r"'builtin:tiny-lama-char'. Did you mean 'builtin:tiny-llama-char'"):
        load_hf_config("builtin:tiny-lama-char")
    with pytest.raises(DataError, match=r"'/no/such/folder' does not exist"):
        load_hf_config("/no/such/folder")
