"""Fresh samples of the real engine in the real backend: a first update is on-policy at any temperature. PITFALL 18."""

import asyncio

import numpy as np
import pytest
import torch

from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.losses import LossOutput, clip
from stretto.algorithms.off_policy import correct, proximal_logprobs
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.algorithms.correction import CorrectionConfig
from stretto.config.backends import TorchBackendConfig
from stretto.engines.native import NativeEngine
from stretto.roles import Request, Sampling
from stretto.types import Batch, Column, Group, Key, LossRef, Prompt, Trajectory

MODEL = "builtin:tiny-llama-char"
TEMPERATURES = (0.3, 1.0, 1.7)
PROMPT = np.arange(4, 10, dtype=np.int32)


def spread_backend() -> TorchBackend:
    """The built-in model with weights large enough that what it samples is far from uniform."""
    backend = TorchBackend({"policy": ModelSpec(path=MODEL)}, TorchBackendConfig(), 0)
    generator = torch.Generator().manual_seed(0)
    for tensor in backend.tensors("policy"):
        if tensor.data.dim() == 2:
            tensor.data.normal_(0, 0.2, generator=generator)
    return backend


async def sampled(backend: TorchBackend, n: int = 8) -> Batch:
    """One batch with a group of every temperature."""
    engine = NativeEngine(load_hf_config(MODEL), slots=8, max_len=64, threads=1)
    async with engine.update_weights(0, in_flight="drain") as sink:
        for tensor in backend.tensors("policy"):
            sink.write(tensor)
    groups = []
    for draw, temperature in enumerate(TEMPERATURES):
        sampling = Sampling(max_tokens=32, temperature=temperature)
        request = Request(id=f"{draw}", token_ids=PROMPT, seeds=tuple(range(n)), sampling=sampling)
        rows = [
            Trajectory(
                key=Key(draw, c.index),
                token_ids_T=np.concatenate([PROMPT, c.token_ids_T]),
                mask_T=np.repeat([0, 1], [len(PROMPT), len(c.token_ids_T)]).astype(np.uint8),
                logprobs_T=np.concatenate([np.zeros(len(PROMPT), np.float32), c.logprobs_T]),
                versions=c.versions,
                finish=c.finish,
                temperature=temperature,
            )
            async for c in engine.generate(request)
        ]
        prompt = Prompt(uid=f"{draw}", text="", token_ids=PROMPT)
        groups.append(Group(draw=draw, prompt=prompt, trajectories=tuple(rows)))
    await engine.close()
    return Batch(groups=tuple(groups))


@pytest.fixture(scope="module")
def fresh() -> tuple[TorchBackend, Batch, Column]:
    backend = spread_backend()
    batch = asyncio.run(sampled(backend))
    (trainer,) = backend.score("policy", batch, frozenset({"logprobs"}))
    return backend, batch, trainer


def sampler_of(batch: Batch) -> np.ndarray:
    return np.concatenate([t.logprobs_T for t in batch.trajectories])


def first_update(backend: TorchBackend, batch: Batch, old: np.ndarray | None):
    """The largest distance of a ratio from 1, and the metrics of the clipped loss with narrow bounds."""
    off: list[float] = []

    def watched(tokens) -> LossOutput:
        logprobs = tokens.policy_logprobs().detach()
        off.append((logprobs - tokens.columns.get("old_logprobs", logprobs)).exp().sub(1).abs().max().item())
        return clip(tokens, clip_low=1e-3, clip_high=1e-3)

    advantages = np.where(np.arange(batch.num_tokens) % 2 == 0, 1.0, -1.0)
    columns = [aggregation_weights(batch), Column.per_token("advantages", batch, advantages)]
    if old is not None:
        columns.append(Column.per_token("old_logprobs", batch, old))
    metrics = backend.accumulate("policy", batch, tuple(columns), LossRef(use="watched", function=watched))
    backend.update("policy", 0.0)
    return max(off), metrics


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_trainer_and_sampler_agree_at_the_temperature_of_the_row(fresh, temperature):
    _, batch, trainer = fresh
    of_row = np.repeat([t.temperature for t in batch.trajectories], np.diff(batch.offsets))
    here = (batch.mask != 0) & (of_row == temperature)
    sampler = sampler_of(batch)[here]
    assert sampler.std() > 0.1, "the model is too flat for temperature to matter"
    assert np.abs(trainer.values[here] - sampler).max() <= 2e-4 / temperature


def test_with_detach_the_ratio_is_exactly_one_and_nothing_is_clipped(fresh):
    backend, batch, trainer = fresh
    off, metrics = first_update(backend, batch, proximal_logprobs("detach", sampler_of(batch), trainer.values))
    assert off == metrics["clip_low"].value == metrics["clip_high"].value == metrics["approx_kl"].value == 0


def test_with_recompute_the_ratio_is_one_within_rounding(fresh):
    backend, batch, trainer = fresh
    off, metrics = first_update(backend, batch, proximal_logprobs("recompute", sampler_of(batch), trainer.values))
    assert off <= 1e-5 and metrics["clip_low"].value == metrics["clip_high"].value == 0


@pytest.mark.parametrize("weights", ["token", "sequence", "geometric"])
def test_nothing_is_left_to_correct(fresh, weights):
    _, batch, trainer = fresh
    config = CorrectionConfig(weights=weights, reject={"token": {}, "geometric": {}, "kl": {"seq_max_k3": 1e-3}})
    out = correct(batch, trainer, config)
    written = batch.mask != 0
    assert out.keep.values[written].all()
    np.testing.assert_allclose(out.weights.values[written], 1, atol=2e-2 if weights == "sequence" else 1e-3)
    assert out.metrics["correction/ess"].value > 0.9999
    assert abs(out.metrics["correction/chi2_token"].value) < 1e-4
