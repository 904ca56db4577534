"""AdamW with moments in 8 bits: codes that are nearest, steps that are close, state that is small and resumes."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.optimizer import SLICE, AdamW
from stretto.backends.torch.quantised import BLOCK, Quantised
from stretto.config.backends import TorchBackendConfig
from stretto.errors import StoreError
from stretto.types import LossRef

CPU = torch.device("cpu")
EIGHT = TorchBackendConfig(optimizer="adamw8bit")
BUILTIN = "builtin:tiny-llama-char"
SFT = LossRef(use="sft")


def dynamic_map(signed):
    """The places of the paper, slowly: 0, 1, and the middles of equal parts of each decade."""
    places = {0.0, 1.0}
    for decade in range(-6, 1):
        parts = 2 ** (decade + 6 + (not signed))
        for part in range(parts):
            middle = (0.1 + 0.9 * (part + 0.5) / parts) * 10.0**decade
            places |= {middle, -middle} if signed else {middle}
    return np.asarray(sorted(places))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 3 * BLOCK), signed=st.booleans(), spread=st.floats(0.1, 8))
def test_every_number_becomes_the_nearest_place_of_its_block(seed, count, signed, spread):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=count) * 10.0 ** rng.uniform(-spread, 0, count) * 10.0 ** rng.integers(-12, 3)
    values[rng.random(count) < 0.05] = 0
    values = (values if signed else np.abs(values)).astype(np.float32)
    held = Quantised.zeros(count, signed=signed, device=CPU)
    assert not held.read(0, count).any()
    held.write(0, torch.from_numpy(values))
    places = dynamic_map(signed)
    assert len(places) == 256
    for start in range(0, count, BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        largest = np.abs(block).max()
        if largest == 0:
            assert not held.read(start, min(start + BLOCK, count)).any()
            continue
        found = held.read(start, min(start + BLOCK, count)).numpy().astype(np.float64) / largest
        distance = np.abs(block / largest - found)
        nearest = np.abs(block[:, None] / largest - places).min(axis=1)
        # A second moment above 0 is not made 0: it takes the least place.
        least = 0 if signed else places[1]
        assert (distance <= np.maximum(nearest * (1 + 1e-5) + 1e-7, least)).all()
        assert ((found == 0) <= (block <= 0)).all() or signed


def parameters_of(*shapes):
    generator = torch.Generator().manual_seed(0)
    return {f"p{i}": nn.Parameter(torch.randn(shape, generator=generator)) for i, shape in enumerate(shapes)}


def gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in parameters.values():
        rows = torch.randn(p.shape[0], generator=generator).exp().view(-1, *[1] * (p.dim() - 1))
        p.grad = torch.randn(p.shape, generator=generator) * rows


def test_a_step_is_close_to_one_with_float32_moments():
    """The first is the same to the bit, as there are no moments yet; later ones differ by rounding."""
    shapes = ((70, 100), (300,), (SLICE // 64 + 3, 64))
    eight, full = parameters_of(*shapes), parameters_of(*shapes)
    optimizers = [AdamW(eight, EIGHT), AdamW(full, TorchBackendConfig())]
    for step in range(6):
        before = {name: p.detach().clone() for name, p in full.items()}
        for parameters, optimizer in zip((eight, full), optimizers, strict=True):
            for name, p in parameters.items():
                p.data.copy_(before[name])
            gradients(parameters, step)
            optimizer.step(1e-3)
        for name, p in full.items():
            moved, other = p.detach() - before[name], eight[name].detach() - before[name]
            gap = float((moved - other).norm() / moved.norm())
            assert gap < 0.04, (step, name, gap)
            assert step or torch.equal(p, eight[name])
            assert name != "p1" or torch.equal(p, eight[name]), "a small parameter keeps float32 moments"
            assert float((moved - other).abs().max()) < 1e-3, "less than a whole step at this rate"
    assert {int(m.step) for m in optimizers[0].moments.values()} == {6}


def test_slices_change_nothing():
    whole, cut = parameters_of((SLICE + 1000,)), parameters_of((SLICE,), (1000 + SLICE,))
    cut["p1"].data[:1000].copy_(whole["p0"].data[SLICE:])
    cut["p0"].data.copy_(whole["p0"].data[:SLICE])
    optimizers = [AdamW(whole, EIGHT), AdamW(cut, EIGHT)]
    for step in range(3):
        gradients(whole, step)
        assert whole["p0"].grad is not None
        cut["p0"].grad = whole["p0"].grad[:SLICE]
        cut["p1"].grad = torch.zeros(1000 + SLICE)
        cut["p1"].grad[:1000] = whole["p0"].grad[SLICE:]
        for optimizer in optimizers:
            optimizer.step(1e-2)
    assert torch.equal(whole["p0"][:SLICE], cut["p0"])


def backend_of(**config):
    return TorchBackend({"policy": ModelSpec(path=BUILTIN)}, TorchBackendConfig(**config), 0)


def learn(backend, random_batch, steps, lr=3e-4):
    losses = []
    for step in steps:
        batch = random_batch(step % 4)
        metrics = backend.accumulate("policy", batch, (aggregation_weights(batch),), SFT)
        assert backend.update("policy", lr).skipped is None
        losses.append(metrics["loss"].value)
    return losses


def vocabulary_of_twenty(random_batch):
    from dataclasses import replace

    def make(seed):
        batch = random_batch(seed)
        return replace(
            batch,
            groups=tuple(
                replace(
                    g,
                    trajectories=tuple(
                        replace(t, token_ids_T=(t.token_ids_T % 20).astype(np.int32)) for t in g.trajectories
                    ),
                )
                for g in batch.groups
            ),
        )

    return make


def test_it_learns_as_with_float32_moments(random_batch):
    make = vocabulary_of_twenty(random_batch)
    eight, full = (learn(backend_of(optimizer=kind), make, range(40)) for kind in ("adamw8bit", "adamw"))
    fallen = full[0] - np.mean(full[-4:])
    assert fallen > 1
    assert abs(np.mean(eight[-4:]) - np.mean(full[-4:])) < 0.1 * fallen


def test_the_state_is_a_quarter_and_resumes_to_the_bit(random_batch, tmp_path):  # pitfall 8
    make = vocabulary_of_twenty(random_batch)
    never = backend_of(optimizer="adamw8bit")
    learn(never, make, range(2))
    never.capture()(tmp_path)
    weights = (tmp_path / "policy.safetensors").stat().st_size
    assert 0.5 < (tmp_path / "policy.optimizer.safetensors").stat().st_size / weights < 0.55
    learn(never, make, range(2, 4))
    fresh = backend_of(optimizer="adamw8bit")
    learn(fresh, make, range(7, 8))
    fresh.load(tmp_path)
    learn(fresh, make, range(2, 4))
    assert fresh.weights_hash("policy") == never.weights_hash("policy")


def test_a_checkpoint_of_the_other_kind_is_refused(random_batch, tmp_path):
    make = vocabulary_of_twenty(random_batch)
    kinds = ("adamw8bit", "adamw")
    for kind in kinds:
        backend = backend_of(optimizer=kind)
        learn(backend, make, range(1))
        (tmp_path / kind).mkdir()
        backend.capture()(tmp_path / kind)
    for kind, other in (kinds, kinds[::-1]):
        with pytest.raises(StoreError, match=rf"moments of backend.optimizer={kind}, and it is {other} now. Set it to"):
            backend_of(optimizer=other).load(tmp_path / kind)
    # an older checkpoint does not say what it is, and is of float32
    file = tmp_path / "adamw" / "policy.optimizer.json"
    told = json.loads(file.read_text())
    del told["optimizer"]
    file.write_text(json.dumps(told))
    backend_of(optimizer="adamw").load(tmp_path / "adamw")
    file.write_text(json.dumps({"steps": {"other": 1}}))
    with pytest.raises(StoreError, match="is not the optimizer state of this Model"):
        backend_of(optimizer="adamw").load(tmp_path / "adamw")
