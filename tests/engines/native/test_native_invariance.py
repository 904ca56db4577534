"""A request's bits do not depend on company, order, slots (of several) or buffer length."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from stretto.engines.native.cache import KEYS, MIDDLE_KEYS, SHORT_KEYS, KVCache, Padding
from stretto.engines.native.matrix import Product
from stretto.engines.native.prefill import CHUNKS
from stretto.engines.native.probe import probe_invariance
from stretto.engines.native.rounding import cancelling, weighted
from stretto.errors import EngineError
from stretto.roles import Completion, Request, Sampling
from stretto.types import Span

SAMPLINGS = [
    Sampling(max_tokens=9, stop_ids=(3, 5, 8, 13, 21, 34)),
    Sampling(max_tokens=20, temperature=0.7),
    Sampling(max_tokens=6, temperature=0.0),
    Sampling(max_tokens=14, temperature=1.2, top_k=11, top_p=0.9),
    Sampling(max_tokens=17, temperature=1.2, min_p=0.02, stop=("7", "31", "4 4")),
]


def _decode(token_ids):
    return " ".join(map(str, token_ids.tolist()))


def _requests(rng, count):
    return [
        Request(
            id=f"r{i}",
            token_ids=rng.integers(0, 97, rng.choice([1, 4, 8, 9, 17, 31, 32, 33, 50, 75])).astype(np.int32),
            seeds=tuple(int(s) for s in rng.integers(0, 2**63, rng.integers(1, 6))),
            sampling=SAMPLINGS[rng.integers(len(SAMPLINGS))],
        )
        for i in range(count)
    ]


def _bits(completion):
    return (completion.token_ids_T.tobytes(), completion.logprobs_T.tobytes(), completion.finish, completion.stop)


async def _alone(engine, requests, collect):
    """Every sample of every request as a request of its own, one at a time."""
    bits = {}
    for request in requests:
        for sample, seed in enumerate(request.seeds):
            (completion,) = await collect(engine, replace(request, seeds=(seed,)))
            bits[request.id, sample] = _bits(completion)
    return bits


async def _late(delay_s, coroutine):
    await asyncio.sleep(delay_s)
    return await coroutine


async def _schedule(engine, requests, rng, collect):
    """A random part of the requests, in random order, some arriving late."""
    some = [requests[i] for i in rng.permutation(len(requests))[: rng.integers(2, len(requests) + 1)]]
    results = await asyncio.gather(*(_late(rng.choice([0, 0, 0.003, 0.01]), collect(engine, r)) for r in some))
    return {(r.id, c.index): _bits(c) for r, cs in zip(some, results, strict=True) for c in cs}


def test_same_bits_in_any_schedule(tiny, collect):  # pitfall 22
    async def main():
        rng = np.random.default_rng(7)
        requests = _requests(rng, 24 if tiny.own else 8)
        engine = await tiny.engine(slots=5, decode=_decode)
        alone = await _alone(engine, requests, collect)
        await engine.close()
        compared = 0
        for slots, max_len in [(2, 100), (2, 128), (3, 200), (8, 100), (13, 320), (32, 110), (64, 512)]:
            engine = await tiny.engine(slots=slots, max_len=max_len, decode=_decode)
            for _ in range(2 if tiny.own else 1):
                for key, bits in (await _schedule(engine, requests, rng, collect)).items():
                    assert bits == alone[key], (key, slots, max_len)
                    compared += 1
            await engine.close()
        assert compared > (200 if tiny.own else 50)

    asyncio.run(main())


def test_an_engine_of_one_slot_repeats_itself(tiny, collect):
    """It never has company, and pads nothing; what waits behind a request does not change it."""

    async def main():
        rng = np.random.default_rng(8)
        requests = _requests(rng, 6)
        engine = await tiny.engine(slots=1, max_len=128, decode=_decode)
        alone = await _alone(engine, requests, collect)
        for _ in range(2):
            for key, bits in (await _schedule(engine, requests, rng, collect)).items():
                assert bits == alone[key], key
        await engine.close()

    asyncio.run(main())


def test_without_invariance_nothing_is_padded_and_samples_differ_by_rounding_only(tiny, collect):
    async def main():
        requests = [replace(r, sampling=Sampling(max_tokens=12)) for r in _requests(np.random.default_rng(9), 6)]
        told = []
        for batch_invariant in (True, False):
            engine = await tiny.engine(slots=5, max_len=128, batch_invariant=batch_invariant)
            told.append(await asyncio.gather(*(collect(engine, r) for r in requests)))
            await engine.close()
        for padded, loose in zip(*told, strict=True):
            for one, other in zip(padded, loose, strict=True):
                assert one.token_ids_T.tolist() == other.token_ids_T.tolist()
                np.testing.assert_allclose(one.logprobs_T, other.logprobs_T, atol=1e-4)
        assert [Padding(invariant=False).rows(n) for n in (1, 3, 9)] == [1, 3, 9]
        assert [Padding(multiple=8).rows(n) for n in (1, 3, 9)] == [8, 8, 16]

    asyncio.run(main())


def _cache(head_dim, dtype=torch.float32, *, per_kv=1, length=10 * KEYS):
    return KVCache(torch.empty(1, 2, 1, 1, length, head_dim, dtype=dtype), per_kv)


def test_the_count_of_keys():
    """No fewer than have the same bits as more; of those the fewest."""
    padding, cache = Padding(), _cache(64)
    for tokens in (1, 8, 64):
        allowed = cache.alike_keys(tokens)
        assert (
            set(allowed) <= {*SHORT_KEYS, *MIDDLE_KEYS, *range(KEYS, 10 * KEYS + 1, KEYS)} and allowed[-1] == 10 * KEYS
        )
        for longest in (1, 16, 17, 32, 33, 64, 65, 300, 10 * KEYS):
            assert padding.keys(longest, cache, tokens) == next(n for n in allowed if n >= longest)
    assert Padding(invariant=False).keys(17, cache, 1) == 24


def test_one_slot_pads_no_row_and_still_computes_prompts_in_any_chunks():
    product = Product(rows=128, columns=512, dtype=torch.float32, layout="plain")
    padding = Padding.found([product], torch.device("cpu"), threads=1, alone=True)
    assert padding.rows(1) == 1
    assert all(size % padding.multiple == 0 for size in padding.chunks(_cache(64), CHUNKS))


def test_a_cache_reads_no_more_keys_than_it_has():
    for head_dim in (8, 16, 32, 64, 128, 256):
        for tokens in (1, 8, 128):
            for length in (KEYS, 2 * KEYS, 3 * KEYS):
                assert _cache(head_dim, length=length).alike_keys(tokens)[-1] == length


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 80, 96, 128, 256])
def test_no_count_of_keys_changes_a_bit(head_dim, dtype):
    """A row attends to what it has, however many keys its company makes it read."""
    draw = torch.Generator().manual_seed(head_dim)
    keys, values = (torch.randn(8, 10 * KEYS, head_dim, generator=draw).to(dtype) for _ in range(2))
    for per_kv in (1, 2, 3, 4, 6, 8, 32, 64, 128):
        alike = _cache(head_dim, dtype, per_kv=per_kv).alike_keys(1)
        query = torch.randn(8, per_kv, head_dim, generator=draw).to(dtype)
        query, keys = cancelling(query, keys)
        for have in (1, 7, 15, 16, 17, 31, 32, 33, 50, 64, 150, 200, 330):
            outputs, sums = [], []
            for count in (n for n in alike if n >= have):
                mask = torch.zeros(8, per_kv, count, dtype=dtype)
                mask[:, :, have:] = float("-inf")
                scores = torch.baddbmm(mask, query, keys[:, :count].transpose(1, 2), alpha=head_dim**-0.5)
                outputs.append(weighted(scores.softmax(dim=-1), values[:, :count]))
                sums.append(scores.float().logsumexp(dim=-1))
            for found in (outputs, sums):
                assert all(torch.equal(found[0], other) for other in found[1:]), (per_kv, have)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("length", [KEYS, 2 * KEYS, 10 * KEYS])
def test_no_size_of_a_chunk_changes_a_bit(head_dim, dtype, length):
    """What is remembered of a prompt changes how the rest of it is cut, and nothing else."""
    draw = torch.Generator().manual_seed(head_dim)
    for per_kv in (1, 2, 3, 8):
        cache = _cache(head_dim, dtype, per_kv=per_kv, length=length)
        keys, values = (torch.randn(2, length, head_dim, generator=draw).to(dtype) for _ in range(2))
        sizes = Padding().together(cache, CHUNKS)
        query, keys = cancelling(torch.randn(2, sizes[-1] * per_kv, head_dim, generator=draw).to(dtype), keys)
        for have in (5, 20, 60, 100, 300):
            if have > length:
                break
            outputs = []
            for size in sizes:
                count = Padding().keys(have, cache, size)
                mask = torch.zeros(2, size * per_kv, count, dtype=dtype)
                mask[:, :, have:] = float("-inf")
                own = query[:, : size * per_kv].contiguous()
                scores = torch.baddbmm(mask, own, keys[:, :count].transpose(1, 2), alpha=head_dim**-0.5)
                outputs.append(weighted(scores.softmax(dim=-1), values[:, :count])[:, : sizes[0] * per_kv])
            assert all(torch.equal(outputs[0], other) for other in outputs[1:]), (per_kv, have)


def test_probe_passes_on_a_held_model(tiny):
    async def main():
        for settings in ({"slots": 1, "max_len": 2}, {"slots": 3, "max_len": 20}, {"slots": 64}):
            engine = await tiny.engine(**settings)
            await engine.probe_invariance()
            assert (await engine.status()).pending == {}
            await engine.close()

    asyncio.run(main())


class _Crowded:
    """An engine whose log-probs depend on how many requests are running."""

    def __init__(self):
        self.running = 0

    async def generate(self, request):
        self.running += 1
        await asyncio.sleep(0.01)
        logprobs = np.full(1, -0.5 - self.running * 1e-7, np.float32)
        for index in range(len(request.seeds)):
            yield Completion(
                index=index,
                token_ids_T=np.zeros(1, np.int32),
                logprobs_T=logprobs,
                versions=(Span(0, 1),),
                finish="length",
            )
        self.running -= 1


def test_probe_names_what_to_do_when_bits_differ():
    with pytest.raises(EngineError, match=r"not batch-invariant.*engine\.threads=1"):
        asyncio.run(probe_invariance(_Crowded(), slots=8, max_len=64, vocab_size=10))
