"""Matrices that are packed: the same model, the same bits in any company, and no memory held twice."""

import asyncio

import numpy as np
import pytest
import torch

from stretto.engines.native import matrix
from stretto.engines.native.matrix import Matrix, wins_packed
from stretto.roles import Request, Sampling

CPU = torch.device("cpu")
packs_here = pytest.mark.skipif(
    not wins_packed(10_000, 10_000, torch.float32, CPU), reason="this machine has no packed products"
)


def test_large_float32_matrices_on_a_cpu_are_packed_small_ones_are_not():
    assert not wins_packed(128, 128, torch.float32, CPU)
    assert not wins_packed(10_000, 10_000, torch.bfloat16, CPU)
    assert not wins_packed(10_000, 10_000, torch.float32, torch.device("cuda"))


@packs_here
@pytest.mark.parametrize("shape", [(96, 64), (600, 576), (4096, 256)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(shape):
    rows, columns = shape
    with torch.inference_mode():
        held = Matrix(rows, columns, torch.float32, CPU, packs=True)
        held.begin()
        weight = torch.randn(rows, columns)
        held.dense.copy_(weight)
        held.settle()
        x, state, bias = torch.randn(65, columns), torch.randn(65, rows), torch.randn(rows)
        whole, added = held.times(x, bias), held.added(state.clone(), x, bias)
        torch.testing.assert_close(whole, x @ weight.T + bias, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(added, state + x @ weight.T + bias, atol=1e-4, rtol=1e-4)
        for count in (1, 2, 3, 5, 8, 17, 64):
            assert torch.equal(held.times(x[:count], bias), whole[:count])
            assert torch.equal(held.added(state[:count].clone(), x[:count], bias), added[:count])


@packs_here
def test_packed_memory_is_not_held_twice():
    with torch.inference_mode():
        held = Matrix(600, 576, torch.float32, CPU, packs=True)
        held.begin()
        held.dense.zero_()
        held.settle()
        with pytest.raises(AssertionError):
            _ = held.dense
        embed = torch.ones(600, 576)
        head = Matrix(600, 576, torch.float32, CPU, packs=True, dense=embed)
        head.settle()
        assert head.dense is embed  # tied: the embedding is read as it is


@packs_here
@pytest.mark.parametrize("name", ["llama", "llama-gqa-biased-llama3", "qwen2", "qwen3"])
def test_a_model_all_packed(name, make, collect, monkeypatch):  # pitfall 18, pitfall 22
    """Exact, unpadded and batch-invariant; and after a second publication too."""
    monkeypatch.setattr(matrix, "LARGE_MATRIX", 0)
    rng = np.random.default_rng(1)
    requests = [
        Request(
            id=f"r{i}",
            token_ids=rng.integers(0, 97, length).astype(np.int32),
            seeds=tuple(range(i, i + n)),
            sampling=Sampling(max_tokens=7),
        )
        for i, (length, n) in enumerate([(5, 1), (33, 3), (70, 2), (120, 5)])
    ]

    async def main():
        engine = await make(name, seed=3).engine(slots=7, max_len=256)
        tiny = make(name, seed=0)
        await tiny.publish(engine, version=1)
        together = await asyncio.gather(*(collect(engine, request) for request in requests))
        for request, completions in zip(requests, together, strict=True):
            alone = await collect(engine, request)
            for one, other in zip(completions, alone, strict=True):
                assert one.logprobs_T.tobytes() == other.logprobs_T.tobytes()
                whole = np.concatenate([request.token_ids, one.token_ids_T])
                with torch.no_grad():
                    logprobs = tiny.model(torch.from_numpy(whole).long()[None]).logits[0].double().log_softmax(-1)
                told = logprobs[len(request.token_ids) - 1 : -1].gather(
                    1, torch.from_numpy(one.token_ids_T).long()[:, None]
                )
                np.testing.assert_allclose(one.logprobs_T, told[:, 0].numpy(), atol=1e-4)
        await engine.close()

    asyncio.run(main())
