"""Sequences that go on while weights change: with the keys and values they have, or with new ones."""

import asyncio

import numpy as np
import pytest
import torch

from stretto.roles import Request, Sampling


def _requests(length):
    """One whose samples share a long prompt, one whose samples have copies of a short one, some waiting for slots."""
    rng = np.random.default_rng(7)
    sampling = Sampling(max_tokens=length)
    return [
        Request(
            id=f"r{i}", token_ids=rng.integers(0, 97, size).astype(np.int32), seeds=tuple(range(n)), sampling=sampling
        )
        for i, (size, n) in enumerate([(120, 6), (9, 5), (100, 4), (33, 1)])
    ]


def _told(model, request, completion):
    """What ``model`` says of every token of a completion, computed whole."""
    whole = np.concatenate([request.token_ids, completion.token_ids_T])
    with torch.no_grad():
        logprobs = model(torch.from_numpy(whole).long()[None]).logits[0].double().log_softmax(-1)
    at = torch.from_numpy(completion.token_ids_T).long()[:, None]
    return logprobs[len(request.token_ids) - 1 : -1].gather(1, at)[:, 0].numpy()


async def _across_a_window(tiny, other, collect, in_flight, length):
    """Completions of sequences that a window found under way, by old weights at first and by ``other`` ones then."""
    requests = _requests(length)
    engine = await tiny.engine(slots=14, max_len=256)
    running = [asyncio.create_task(collect(engine, request)) for request in requests]
    while (await engine.status()).generated_tokens < 14 * length // 3:
        await asyncio.sleep(0)
    async with engine.update_weights(1, in_flight=in_flight) as sink:
        for tensor in other.tensors():
            sink.write(tensor)
    found = await asyncio.gather(*running)
    await engine.close()
    return [(request, c) for request, completions in zip(requests, found, strict=True) for c in completions]


@pytest.mark.parametrize("in_flight", ["keep", "recompute"])
def test_tokens_are_told_by_the_weights_they_carry(tiny, make, collect, in_flight):
    """With ``recompute`` to rounding; with ``keep`` what came before was read by older weights, and it shows."""
    length = 90 if tiny.own else 24
    other = make(tiny.name, seed=5)
    pairs = asyncio.run(_across_a_window(tiny, other, collect, in_flight, length))
    crossing = 0
    largest = 0.0
    for request, completion in pairs:
        versions = [span.version for span in completion.versions]
        assert versions in ([0], [1], [0, 1])
        assert sum(span.length for span in completion.versions) == len(completion.token_ids_T) == length
        old = completion.versions[0].length if versions[0] == 0 else 0
        before, after = _told(tiny.model, request, completion), _told(other.model, request, completion)
        np.testing.assert_allclose(completion.logprobs_T[:old], before[:old], atol=2e-4)
        gap = np.abs(completion.logprobs_T[old:] - after[old:])
        if versions == [0, 1]:
            crossing += 1
            largest = max(largest, float(gap.max()))
        else:  # begun by the new weights
            assert (gap < 2e-4).all()
    assert crossing > 5
    assert largest < 2e-4 if in_flight == "recompute" else largest > 1e-2


def test_weights_that_do_not_change_change_nothing_but_rounding(llama, collect):
    """Making keys and values anew gives those that were there."""
    plain = asyncio.run(_across_a_window(llama, llama, collect, "keep", 60))
    anew = asyncio.run(_across_a_window(llama, llama, collect, "recompute", 60))
    for (_, one), (_, other) in zip(plain, anew, strict=True):
        assert one.token_ids_T.tolist() == other.token_ids_T.tolist()
        np.testing.assert_allclose(one.logprobs_T, other.logprobs_T, atol=2e-4)
