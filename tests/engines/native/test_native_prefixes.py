"""Prompts that begin like earlier ones are computed from there, and nobody could tell but by the time."""

import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.engines.native.cache import KEYS, round_up
from stretto.engines.native.prefill import CHUNKS, cut
from stretto.engines.native.prefixes import BLOCK
from stretto.roles import Request, Sampling


def _request(name, tokens, n=2, **sampling):
    seeds = tuple(1000 * int(name) + i for i in range(n))
    return Request(
        id=name, token_ids=np.asarray(tokens, np.int32), seeds=seeds, sampling=Sampling(**{"max_tokens": 5, **sampling})
    )


def _bits(completions):
    return [(c.index, c.token_ids_T.tobytes(), c.logprobs_T.tobytes()) for c in completions]


async def _conversations(engine, collect, *, turns=4, talks=3):
    """Several conversations, their turns in turns; the bits of everything that was said."""
    rng = np.random.default_rng(3)
    system = rng.integers(0, 97, 37).tolist()
    said = [system + rng.integers(0, 97, 11 + 9 * talk).tolist() for talk in range(talks)]
    bits = []
    for turn in range(turns):
        requests = [_request(str(turn * talks + talk), said[talk]) for talk in range(talks)]
        for talk, answers in enumerate(await asyncio.gather(*(collect(engine, r) for r in requests))):
            answers.sort(key=lambda c: c.index)
            bits.append(_bits(answers))
            said[talk] += [*answers[0].token_ids_T.tolist(), *rng.integers(0, 97, 20).tolist()]
    return bits


@pytest.mark.parametrize("tokens", [BLOCK, 5 * BLOCK, 640])
def test_what_is_remembered_changes_no_bit(tiny, collect, tokens):
    """However much of it: nothing, a little that is soon forgotten, everything."""

    async def main():
        seen = {}
        for prefix_tokens in (0, tokens):
            engine = await tiny.engine(slots=4, max_len=256, prefix_tokens=prefix_tokens)
            seen[prefix_tokens] = await _conversations(engine, collect), await engine.status()
            await engine.close()
        (plain, without), (reused, having) = seen.values()
        assert reused == plain
        assert without.remembered_tokens == 0
        assert having.remembered_tokens > 0
        assert having.prefilled_tokens + having.remembered_tokens == without.prefilled_tokens
        if tokens == 640:  # all turns but the first of each, but for what is new in them
            assert having.remembered_tokens > 0.5 * without.prefilled_tokens

    asyncio.run(main())


def test_a_publication_forgets(llama, make, collect):  # pitfall: a prefix cache that outlives its weights
    async def main():
        prompt = np.arange(80) % 97
        engine = await llama.engine(slots=2, max_len=128, prefix_tokens=256)
        await collect(engine, _request("0", prompt))
        changed = make(llama.name, seed=5)
        await changed.publish(engine, version=1)
        again = await collect(engine, _request("1", prompt))
        assert (await engine.status()).remembered_tokens == 0
        assert (await engine.status()).version == 1
        await engine.close()
        fresh = await changed.engine(slots=2, max_len=128)
        assert _bits(again) == _bits(await collect(fresh, _request("1", prompt)))
        await fresh.close()

    asyncio.run(main())


def test_memory_that_was_released_remembers_nothing(llama, collect):
    async def main():
        engine = await llama.engine(slots=2, max_len=128, prefix_tokens=256)
        first = await collect(engine, _request("0", np.arange(80)))
        await engine.set_memory("kv_released")
        await engine.set_memory("awake")
        assert _bits(await collect(engine, _request("0", np.arange(80)))) == _bits(first)
        assert (await engine.status()).remembered_tokens == 0
        await engine.close()

    asyncio.run(main())


@given(
    start=st.integers(0, 200).map(lambda n: n * BLOCK),
    more=st.integers(1, 700).map(lambda n: n * 8),
    sizes=st.sampled_from([CHUNKS, CHUNKS[:3], CHUNKS[1:], CHUNKS[1:2]]),
)
def test_chunks_cover_a_prompt_and_stay_in_the_cache(start, more, sizes):
    chunks = list(cut(start, start + more, sizes))
    assert chunks[0][0] == start
    assert all(size in sizes for _, size in chunks)
    assert all(a + size == b for (a, size), (b, _) in itertools.pairwise(chunks))
    last = sum(chunks[-1])
    assert start + more <= last <= round_up(start + more, KEYS)
    assert sum(size for _, size in chunks) <= max(32, 1.34 * more)
