"""The engine against transformers: log-probs of what it sampled, greedy completions."""

import asyncio

import numpy as np
import pytest
import torch

from stretto.engines.native.choice import open_forward
from stretto.errors import ConfigError
from stretto.roles import Request, Sampling


def _requests(count, sampling, seed=0, longest=40, n=2):
    rng = np.random.default_rng(seed)
    return [
        Request(
            id=f"r{i}",
            token_ids=rng.integers(0, 97, rng.integers(1, longest + 1)).astype(np.int32),
            seeds=tuple(int(s) for s in rng.integers(0, 2**63, n)),
            sampling=sampling,
        )
        for i in range(count)
    ]


async def _generate(tiny, requests, collect, **settings):
    engine = await tiny.engine(**settings)
    results = await asyncio.gather(*(collect(engine, request) for request in requests))
    await engine.close()
    return results


@torch.no_grad()
def _scored(model, prompt, completion, sampling):
    """Teacher-forced log-probs of the completion under the distribution it was sampled from, float64 support."""
    ids = torch.from_numpy(np.concatenate([prompt, completion]).astype(np.int64))[None]
    logits = model(ids).logits[0, len(prompt) - 1 : -1] / (sampling.temperature or 1.0)
    for row in logits:
        if sampling.top_k:
            row[row < row.topk(sampling.top_k).values[-1]] = float("-inf")
        if sampling.top_p < 1:
            ordered, order = row.sort(descending=True)
            share = ordered.softmax(-1).double()
            row[order[(share.cumsum(-1) - share) >= sampling.top_p]] = float("-inf")
        row[row.softmax(-1) < sampling.min_p * row.softmax(-1).max()] = float("-inf")
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, max_tokens=32),
        Sampling(temperature=0.7, max_tokens=32),
        Sampling(temperature=1.3, top_k=7, top_p=0.9, max_tokens=16),
        Sampling(temperature=1.3, min_p=0.2, max_tokens=16),
    ],
    ids=["t1", "t0.7", "top", "min_p"],
)
def test_logprobs_are_those_of_a_teacher_forced_forward(tiny, sampling, collect):  # pitfall 17, pitfall 18
    requests = _requests(20, sampling)
    results = asyncio.run(_generate(tiny, requests, collect, slots=16))
    gaps = np.concatenate(
        [
            np.abs(c.logprobs_T - _scored(tiny.model, request.token_ids, c.token_ids_T, sampling))
            for request, completions in zip(requests, results, strict=True)
            for c in completions
        ]
    )
    assert len(gaps) == 40 * sampling.max_tokens
    assert gaps.max() <= 1e-3
    assert np.quantile(gaps, 0.999) <= 1e-4


@torch.no_grad()
def test_greedy_completions_are_those_of_transformers(tiny, collect):
    sampling = Sampling(temperature=0.0, max_tokens=12)
    requests = _requests(6, sampling, longest=70, n=1)
    results = asyncio.run(_generate(tiny, requests, collect))
    for request, (completion,) in zip(requests, results, strict=True):
        ids = torch.from_numpy(request.token_ids.astype(np.int64))[None]
        for token, logprob in zip(completion.token_ids_T, completion.logprobs_T, strict=True):
            logits = tiny.model(ids).logits[0, -1]
            assert logits[token] >= logits.max() - 1e-4
            assert abs(logits.log_softmax(-1)[token] - logprob) < 1e-4
            ids = torch.cat([ids, torch.tensor([[int(token)]])], dim=1)


def test_bfloat16_stays_near(tiny, collect):
    sampling = Sampling(max_tokens=16)
    requests = _requests(4, sampling)
    results = asyncio.run(_generate(tiny, requests, collect, dtype="bfloat16"))
    gaps = np.concatenate(
        [
            np.abs(c.logprobs_T - _scored(tiny.model, r.token_ids, c.token_ids_T, sampling))
            for r, cs in zip(requests, results, strict=True)
            for c in cs
        ]
    )
    assert gaps.mean() < 0.08


@pytest.mark.parametrize("name", ["llama", "qwen3"])  # with tied embeddings and without
def test_a_float32_head_rounds_neither_its_weight_nor_the_logits(name, make):
    """With states in bfloat16 its logits are those of a float32 product with the published weight."""
    tiny = make(name, seed=0)
    logits, states = {}, torch.randn(16, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        for head in (torch.bfloat16, torch.float32):
            forward = open_forward(
                tiny.config, "native", max_len=64, dtype=torch.bfloat16, device=torch.device("cpu"), head_dtype=head
            )
            weights = forward.new_weights(invariant=True)
            window = forward.window(weights)
            for tensor in tiny.tensors():
                window.write(tensor)
            forward.settle(weights)
            logits[head] = forward.logits(weights, states)
        named = dict(tiny.model.named_parameters())
        wide = states.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + tiny.model.config.rms_norm_eps).rsqrt()
        normed = (normed * named["model.norm.weight"].bfloat16()).bfloat16().float()
        exact = normed @ tiny.model.get_output_embeddings().weight.T
    torch.testing.assert_close(logits[torch.float32], exact, atol=1e-2, rtol=1e-5)
    assert (logits[torch.float32] - exact).abs().mean() < 0.2 * (logits[torch.bfloat16] - exact).abs().mean()


def test_a_head_of_another_type_needs_the_own_forward(make):
    with pytest.raises(ConfigError, match="head_dtype=float32 needs Stretto's own forward"):
        make("gemma3_text", seed=0).empty_engine(dtype="bfloat16", head_dtype="float32")
