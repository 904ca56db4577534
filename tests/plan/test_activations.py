"""The estimate of a micro-batch's memory: by hand, as it follows from the settings, and against a real process."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from stretto.backends.torch.layout import WIDE
from stretto.backends.torch.logprobs import CHUNK_ELEMENTS
from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError
from stretto.plan import Computing, DeviceFacts, ModelFacts, Usage, activation_bytes, make_plan, microbatch_tokens
from stretto.plan import activations as plan_activations

WIDTH = {"hidden": 576, "intermediate": 1536, "heads": 9, "kv_heads": 3, "head_dim": 64}
SMOL = ModelFacts(family="llama", vocab_size=1000, layers=4, tied=True, **WIDTH)
TRAIN = Computing(longest=67)


def test_the_estimate_knows_how_the_backend_cuts():
    assert (plan_activations.CHUNK_ELEMENTS, plan_activations.SCORES) == (CHUNK_ELEMENTS, WIDE)


def test_by_hand():
    """float32, 10 tokens: what four layers keep, and the last one's three gradients of its width; the head is less."""
    layer = 4 * (4 * 576 + 2 * 576 + 2 * 192 + 3 * 1536 + 9 * 67)
    states, gradients = 3 * 4 * 576, 3 * 4 * 1536
    assert activation_bytes(SMOL, 10, replace(TRAIN, learns=False)) == round(
        plan_activations.GAPS * 10 * (states + 4 * layer + gradients)
    )
    # The gradient of a large head is more than what is alive inside a layer.
    large = replace(SMOL, vocab_size=50_000)
    assert activation_bytes(large, 10, TRAIN) == round(
        plan_activations.GAPS * (10 * (states + 4 * layer + 16 * 50_000) + 4 * 50_000 * 576)
    )
    assert activation_bytes(replace(large, value_head=True), 10, TRAIN) < activation_bytes(large, 10, TRAIN) / 10


def test_every_way_to_save_saves():
    plain = activation_bytes(SMOL, 4096, TRAIN)
    assert activation_bytes(SMOL, 4096, replace(TRAIN, recomputes=True)) < plain / 2
    assert activation_bytes(SMOL, 4096, replace(TRAIN, layer_bytes=2)) < plain
    assert activation_bytes(SMOL, 4096, replace(TRAIN, backward=False)) < plain / 3
    # Another lower type of the head needs a copy of logits and matrix.
    assert activation_bytes(SMOL, 1, replace(TRAIN, head_bytes=2)) > activation_bytes(SMOL, 1, TRAIN)


def test_memory_lowers_the_tokens_of_a_micro_batch():
    config = TorchBackendConfig(microbatch_memory="200MiB")  # type: ignore[arg-type]
    tokens = microbatch_tokens(SMOL, config, TRAIN)
    assert 100 < tokens < 4096
    assert activation_bytes(SMOL, tokens, TRAIN) <= 200 * 2**20 < activation_bytes(SMOL, tokens + 1, TRAIN)
    assert microbatch_tokens(SMOL, config, replace(TRAIN, recomputes=True)) > 2 * tokens
    assert microbatch_tokens(SMOL, TorchBackendConfig(), TRAIN) == 4096
    assert microbatch_tokens(SMOL, TorchBackendConfig(microbatch_memory="1TiB"), TRAIN) == 4096  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"microbatch_memory=1.0 KiB is too little: one token takes .* Set it to more"
    ):
        microbatch_tokens(SMOL, TorchBackendConfig(microbatch_memory="1KiB"), TRAIN)  # type: ignore[arg-type]


UPDATES = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file
from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend, set_threads
from stretto.backends.torch.decoder import decoder_parts
from stretto.config.backends import TorchBackendConfig
from stretto.families.decoder import own_decoder
from stretto.memory import give_back_memory, tuned_memory
from stretto.types import Batch, Group, Key, LossRef, Prompt, Span, Trajectory

shape, options, folder, draws = (json.loads(arg) for arg in sys.argv[1:])
set_threads(1)
(Path(folder) / "config.json").write_text(json.dumps(shape))
parts = decoder_parts(own_decoder(shape))
state = {f"model.{n}": torch.randn(p.shape) * 0.02 + (p.dim() < 2) for n, p in parts.trunk.named_parameters()}
save_file(state, Path(folder) / "model.safetensors", {"format": "pt"})
del parts, state
give_back_memory()
rng = np.random.default_rng(0)
groups = []
for draw in range(draws):
    prompt = rng.integers(3, shape["vocab_size"], 45)
    rows = []
    for sample in range(8):
        ids = np.concatenate([prompt, rng.integers(3, shape["vocab_size"], 22)]).astype(np.int32)
        mask = np.repeat(np.array([0, 1], np.uint8), (45, 22))
        rows.append(Trajectory(key=Key(draw, sample), token_ids_T=ids, mask_T=mask, logprobs_T=-mask.astype(np.float32),
                               versions=(Span(0, 22),), finish="stop", temperature=1.0, reward=1.0))
    task = Prompt(uid=str(draw), text="", token_ids=prompt.astype(np.int32))
    groups.append(Group(draw=draw, prompt=task, trajectories=tuple(rows)))
batch = Batch(groups=tuple(groups))
with tuned_memory():
    backend = TorchBackend({"policy": ModelSpec(path=folder)}, TorchBackendConfig(**options), 0)
    for _ in range(2):
        backend.accumulate("policy", batch, (aggregation_weights(batch),), LossRef(use="sft"))
        backend.update("policy", 1e-3)
# Not ru_maxrss, which remembers the process that this one was started from.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(1024 * int(peak.split()[1]))
"""
TINY_CONFIG = {"vocab_size": 20, "hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4}
SMOL_CONFIG = {"vocab_size": 1000, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9}
COMMON = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it is told in /proc, and allocators differ")
@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True}, {"optimizer": "adamw8bit"}])
@pytest.mark.parametrize("size", ["1 M", "the width of SmolLM2"])
def test_the_plan_is_what_a_process_takes(tmp_path, size, options):
    own, draws = (TINY_CONFIG, 38) if size == "1 M" else ({**SMOL_CONFIG, "num_key_value_heads": 3}, 9)
    # Two micro-batches: a group is 45 + 8 * 21 tokens.
    config, given = {**COMMON, **own}, {**options, "microbatch_tokens": 107 * draws}
    done = subprocess.run(
        [sys.executable, "-c", UPDATES, *map(json.dumps, (config, given, str(tmp_path), draws))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    measured = int(done.stdout.split()[-1])
    plan = make_plan(
        {"policy": ModelFacts.from_config(config)},
        {"policy": {"train"}},
        [],
        DeviceFacts(name="cpu", memory_bytes=1 << 40),
        Usage(slots=1, max_len=67, backend=TorchBackendConfig(**given)),
    )
    assert 0.7 < plan.total_bytes / measured < 1.3, (plan.total_bytes, measured)
