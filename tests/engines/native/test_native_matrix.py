"""Matrices that are laid out for products: the same model, the same bits in any company, and no memory held twice."""

import asyncio

import numpy as np
import pytest
import torch

from stretto.engines.native import matrix
from stretto.engines.native.matrix import Alike, Matrix, Product, layout_of, rows_alike
from stretto.engines.native.rounding import cancelling
from stretto.roles import Request, Sampling

CPU = torch.device("cpu")
packs_here = pytest.mark.skipif(
    layout_of(10_000, 10_000, torch.float32, CPU) != "packed", reason="this machine has no packed products"
)


def test_large_matrices_on_a_cpu_that_multiplies_their_type_are_packed_small_ones_are_turned():
    assert layout_of(128, 128, torch.float32, CPU) == "turned"
    multiplies = torch.cpu._is_avx512_bf16_supported()
    assert (layout_of(10_000, 10_000, torch.bfloat16, CPU) == "packed") <= multiplies
    assert layout_of(10_000, 10_000, torch.float32, torch.device("cuda")) == "plain"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(97, 128), (128, 512), (64, 96), (600, 576), (256, 1024), (4096, 256), (576, 1536)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(shape, dtype):  # pitfall 22
    """That the products of this machine have a multiple for."""
    rows, columns = shape
    draw = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        product = Product(rows=rows, columns=columns, dtype=dtype, layout=layout_of(rows, columns, dtype, CPU))
        alike = rows_alike(product, CPU, torch.get_num_threads())
        held = Matrix(rows, columns, dtype, CPU, layout=product.layout, most=alike.most)
        held.begin()
        weight, x, state = (torch.randn(n, columns, generator=draw).to(dtype) for n in (rows, 601, 601))
        state = torch.randn(601, rows, generator=draw).to(dtype)
        bias = torch.randn(rows, generator=draw).to(dtype)
        x, weight = cancelling(x, weight)
        x[300:] += 0.1  # what is near zero shows every order of sums; some rows are as in models
        held.dense.copy_(weight)
        held.settle()
        near = {"atol": 1e-3, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 1.0, "rtol": 2e-2}
        most = 600 // alike.multiple * alike.multiple
        whole, added = held.times(x[:most], bias), held.added(state[:most].clone(), x[:most], bias)
        plain = x[:most].float() @ weight.float().T + bias
        torch.testing.assert_close(whole.float(), plain, **near)
        torch.testing.assert_close(added.float(), state[:most] + plain, **near)
        for count in {alike.multiple * n for n in (*range(1, 20), 27, 34)} | {40, 64, 100, 160, 257, 300, 512}:
            if count % alike.multiple == 0:
                assert torch.equal(held.times(x[:count], bias), whole[:count]), count
                assert torch.equal(held.added(state[:count].clone(), x[:count], bias), added[:count]), count


def test_products_that_no_multiple_makes_alike_are_made_in_parts(monkeypatch):
    """As bfloat16 ones of many columns are not on some CPUs."""

    def times(self, x, bias):
        return torch.zeros(len(x), 4) + (len(x) > 32)

    monkeypatch.setattr(Matrix, "_times", times)
    product = Product(rows=4, columns=3, dtype=torch.float64, layout="plain")
    assert rows_alike.__wrapped__(product, CPU, torch.get_num_threads()) == Alike(multiple=1, most=32)
    held = Matrix(4, 3, torch.float64, CPU, layout="plain", most=32)
    assert held.times(torch.zeros(100, 3)).sum() == 0


@packs_here
def test_packed_memory_is_not_held_twice():
    with torch.inference_mode():
        held = Matrix(600, 576, torch.float32, CPU, layout="packed")
        held.begin()
        held.dense.zero_()
        held.settle()
        with pytest.raises(AssertionError):
            _ = held.dense


@pytest.mark.parametrize("layout", ["plain", "turned", pytest.param("packed", marks=packs_here)])
def test_a_matrix_over_memory_of_another_leaves_it_alone(layout):
    """As the head does where it is tied: the embedding is read as it is, and written anew."""
    with torch.inference_mode():
        embed = torch.zeros(600, 576)
        head = Matrix(600, 576, torch.float32, CPU, layout=layout, dense=embed)
        for value in (1.0, 2.0):
            head.begin()
            embed.fill_(value)
            head.settle()
            assert head.dense is embed
            assert embed.is_contiguous()
            assert (head.times(torch.ones(2, 576)) == 576 * value).all()


def test_products_that_differ_beyond_many_rows_are_made_in_large_parts(monkeypatch):
    """As those of a thousand columns do on a CPU with AVX-512."""

    def times(self, x, bias):
        return torch.zeros(len(x), 4) + (len(x) > 128)

    monkeypatch.setattr(Matrix, "_times", times)
    product = Product(rows=4, columns=3, dtype=torch.float64, layout="turned")
    assert rows_alike.__wrapped__(product, CPU, torch.get_num_threads()) == Alike(multiple=1, most=128)


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
