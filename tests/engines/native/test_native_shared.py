"""Samples that share one copy of a long prompt: what they write is right, and the same in any company."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from stretto.engines.native.shared import is_shared
from stretto.errors import EngineError
from stretto.roles import Request, Sampling


def _request(name, length, n, rng, **sampling):
    return Request(
        id=name,
        token_ids=rng.integers(0, 97, length).astype(np.int32),
        seeds=tuple(int(seed) for seed in rng.integers(0, 2**63, n)),
        sampling=Sampling(**{"max_tokens": 12, **sampling}),
    )


def _bits(completions):
    return [(c.token_ids_T.tobytes(), c.logprobs_T.tobytes(), c.finish) for c in completions]


def _mixed(rng):
    """Requests that share and that do not; ends by stop tokens, so that groups thin out."""
    sizes = [(96, 4), (130, 8), (40, 8), (97, 3), (201, 5), (150, 11), (12, 1), (128, 4)]
    stops = tuple(range(0, 97, 7))
    return [
        _request(f"r{i}", length, n, rng, max_tokens=int(rng.integers(1, 30)), stop_ids=stops)
        for i, (length, n) in enumerate(sizes)
    ]


def test_which_requests_share():
    rng = np.random.default_rng(0)
    shares = [is_shared(_request("r", length, n, rng)) for length, n in ((96, 4), (95, 4), (96, 3), (500, 64))]
    assert shares == [True, False, False, True]


def test_logprobs_are_those_of_a_teacher_forced_forward(tiny, collect):  # pitfall 18
    async def main():
        engine = await tiny.engine(slots=16, max_len=256)
        requests = [r for r in _mixed(np.random.default_rng(1)) if is_shared(r)]
        results = await asyncio.gather(*(collect(engine, r) for r in requests))
        await engine.close()
        for request, completions in zip(requests, results, strict=True):
            assert len(completions) == len(request.seeds)
            assert len({c.token_ids_T.tobytes() for c in completions}) > 1
            for completion in completions:
                whole = np.concatenate([request.token_ids, completion.token_ids_T])
                with torch.no_grad():
                    logits = tiny.model(input_ids=torch.from_numpy(whole).long()[None]).logits[0].double()
                logprobs = logits.log_softmax(-1)[len(request.token_ids) - 1 : -1]
                expected = logprobs.gather(1, torch.from_numpy(completion.token_ids_T).long()[:, None])[:, 0]
                np.testing.assert_allclose(completion.logprobs_T, expected.numpy(), atol=1e-4)

    asyncio.run(main())


def test_same_bits_in_any_company(tiny, collect):  # pitfall 22
    async def main():
        rng = np.random.default_rng(2)
        requests = _mixed(rng)
        engine = await tiny.engine(slots=16, max_len=256)
        alone = {request.id: _bits(await collect(engine, request)) for request in requests}
        await engine.close()
        for slots, max_len in [(3, 300), (6, 256), (16, 256), (64, 240)]:  # with few, a request is admitted in parts
            engine = await tiny.engine(slots=slots, max_len=max_len)
            for _ in range(2):
                some = [requests[i] for i in rng.permutation(len(requests))[: rng.integers(3, len(requests) + 1)]]
                results = await asyncio.gather(*(collect(engine, request) for request in some))
                for request, completions in zip(some, results, strict=True):
                    assert _bits(completions) == alone[request.id], (request.id, slots)
            await engine.close()

    asyncio.run(main())


def test_an_aborted_or_dropped_request_leaves_the_others_as_they_are(llama, collect):
    async def main():
        rng = np.random.default_rng(3)
        one, other, later = (_request(name, 120, 6, rng, max_tokens=60) for name in ("one", "other", "later"))
        engine = await llama.engine(slots=12, max_len=256)
        expected = _bits(await collect(engine, other)), _bits(await collect(engine, later))
        running = [asyncio.create_task(collect(engine, r)) for r in (one, other)]
        while (await engine.status()).generated_tokens < 6 * (60 + 60 + 4):
            await asyncio.sleep(0)
        await engine.abort(["one"])
        after = await collect(engine, later)  # takes the place of the prompt that was given up
        cut, whole = await asyncio.gather(*running)
        assert {c.finish for c in cut} == {"aborted"}
        assert (_bits(whole), _bits(after)) == expected
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
def test_a_publication_in_the_middle(llama, make, collect, in_flight):
    async def main():
        rng = np.random.default_rng(4)
        first, second = _request("first", 120, 9, rng, max_tokens=40), _request("second", 120, 4, rng)
        changed = make(llama.name, seed=5)
        engine = await llama.engine(slots=4, max_len=256)  # some samples wait, and start under the new weights
        running = asyncio.create_task(collect(engine, first))
        while (await engine.status()).generated_tokens < 20:
            await asyncio.sleep(0)
        async with engine.update_weights(1, in_flight=in_flight) as sink:
            for tensor in changed.tensors():
                sink.write(tensor)
        after = await collect(engine, replace(second, id="after"))
        versions = {span.version for c in await running for span in c.versions}
        assert versions == ({0} if in_flight == "drain" else {0, 1})
        await engine.close()
        fresh = await changed.engine(slots=4, max_len=256)
        assert _bits(after) == _bits(await collect(fresh, second))
        await fresh.close()

    asyncio.run(main())


def test_prompts_that_are_shared_are_held_as_long_as_needed(llama, collect):
    """More at a time than there was room for at first; later ones take the places of those that are done."""

    async def main():
        rng = np.random.default_rng(5)
        requests = [_request(f"r{i}", 100 + i, 4, rng, max_tokens=3 + i) for i in range(12)]
        engine = await llama.engine(slots=30, max_len=256)
        expected = [_bits(await collect(engine, request)) for request in requests]
        for _ in range(3):
            results = await asyncio.gather(*(collect(engine, request) for request in requests))
            assert [_bits(completions) for completions in results] == expected
        await engine.close()

    asyncio.run(main())


def test_an_engine_that_failed_and_took_new_memory_knows_no_prompt_of_before(llama, collect):
    """Rows that a failure freed name prompts that the new memory has no room for."""

    async def main():
        rng = np.random.default_rng(6)
        many = [_request(f"r{i}", 100, 4, rng, max_tokens=60) for i in range(7)]
        few = [_request(f"s{i}", 100, 5, rng) for i in range(4)]  # 20 rows, among 24
        engine = await llama.engine(slots=30, max_len=256)
        expected = [_bits(await collect(engine, request)) for request in few]
        running = [asyncio.create_task(collect(engine, request)) for request in many]
        while (await engine.status()).generated_tokens < 4 * 5 * 12 + 100:
            await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            async with engine.update_weights(1, in_flight="keep"):
                raise ZeroDivisionError
        assert {type(end) for end in await asyncio.gather(*running, return_exceptions=True)} == {EngineError}
        await llama.publish(engine, 2)
        await engine.set_memory("kv_released")
        await engine.set_memory("awake")
        results = await asyncio.gather(*(collect(engine, request) for request in few))
        assert [_bits(completions) for completions in results] == expected
        await engine.close()

    asyncio.run(main())
