"""Publication into the engine: names, shapes, completeness, tied embeddings, versions, torn windows."""

import asyncio
import itertools
import threading

import numpy as np
import pytest
import torch

from stretto.errors import EngineError, TrainError
from stretto.roles import NamedTensor, Request, Sampling

PROMPT = np.arange(6, dtype=np.int32)


def _request(name="r", n=1, **sampling):
    return Request(id=name, token_ids=PROMPT, seeds=tuple(range(n)), sampling=Sampling(**sampling))


def test_nothing_is_served_before_the_first_publication(llama, collect):
    async def main():
        engine = llama.empty_engine(slots=4, max_len=64)
        status = await engine.status()
        assert (status.healthy, status.version) == (False, -1)
        with pytest.raises(EngineError, match="'r' was not finished: The engine holds no weights yet"):
            await collect(engine, _request())
        await llama.publish(engine, 3)
        status = await engine.status()
        assert (status.healthy, status.version) == (True, 3)
        assert len(await collect(engine, _request())) == 1
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("model.layers.0.self_attn.q_proj.weigth", torch.zeros(64, 64), "no weight .*Did you mean"),
        ("model.layers.9.mlp.up_proj.weight", torch.zeros(96, 64), "no weight"),
        ("model.norm.weight", torch.zeros(63), r"shape \(64,\), got \(63,\)"),
        ("lm_head.weight", torch.zeros(5, 64), r"shape \(97, 64\), got \(5, 64\)"),
        ("model.norm.weight", [1.0] * 64, r"got list"),
    ],
)
def test_a_wrong_tensor_is_refused_and_the_engine_is_unhealthy(llama, collect, name, data, words):
    async def main():
        engine = await llama.engine()
        with pytest.raises(EngineError, match=words):
            async with engine.update_weights(1, in_flight="drain") as sink:
                sink.write(NamedTensor(name=name, data=data))
        assert not (await engine.status()).healthy
        with pytest.raises(EngineError, match="last weight update did not finish"):
            await collect(engine, _request())
        await llama.publish(engine, 2)
        assert (await engine.status()).healthy
        await collect(engine, _request())
        await engine.close()

    asyncio.run(main())


def test_missing_weights_are_named(llama):
    async def publish_part(engine):
        async with engine.update_weights(0, in_flight="drain") as sink:
            for tensor in llama.tensors():
                if tensor.name not in ("model.layers.1.mlp.down_proj.weight", "model.norm.weight"):
                    sink.write(tensor)

    async def main():
        engine = llama.empty_engine(slots=4, max_len=64)
        with pytest.raises(EngineError, match=r"2 of \d+ weights were not published: model\.layers\.1\.mlp\.down_proj"):
            await publish_part(engine)
        assert not (await engine.status()).healthy
        await engine.close()

    asyncio.run(main())


def test_tied_head_may_be_sent_or_not(llama, collect):  # pitfall 19
    async def main():
        engine = await llama.engine()
        (first,) = await collect(engine, _request())
        async with engine.update_weights(1, in_flight="drain") as sink:
            for tensor in llama.tensors():
                if tensor.name != "lm_head.weight":
                    sink.write(tensor)
        (second,) = await collect(engine, _request())
        assert first.logprobs_T.tobytes() == second.logprobs_T.tobytes()
        await engine.close()

    asyncio.run(main())


def test_an_update_changes_everything_the_model_computes(tiny, make, collect):  # pitfall 19
    async def main():
        other = make(tiny.name, 1)
        engine = await tiny.engine()
        fresh = await other.engine()
        before = await collect(engine, _request(n=3))
        await other.publish(engine, 1)
        after = await collect(engine, _request(n=3))
        expected = await collect(fresh, _request(n=3))
        for old, new, want in zip(before, after, expected, strict=True):
            assert old.logprobs_T.tobytes() != new.logprobs_T.tobytes()
            assert new.logprobs_T.tobytes() == want.logprobs_T.tobytes()
            assert new.versions[0].version == 1
        await engine.close()
        await fresh.close()

    asyncio.run(main())


def test_writes_come_from_another_thread_and_are_copies(llama, collect):
    async def main():
        engine = await llama.engine()
        (want,) = await collect(engine, _request())
        async with engine.update_weights(1, in_flight="drain") as sink:

            def learner():
                for tensor in llama.tensors():
                    scratch = tensor.data.clone()
                    sink.write(NamedTensor(name=tensor.name, data=scratch))
                    scratch.fill_(float("nan"))

            thread = threading.Thread(target=learner)
            thread.start()
            await asyncio.to_thread(thread.join)
        (got,) = await collect(engine, _request())
        assert got.logprobs_T.tobytes() == want.logprobs_T.tobytes()
        with pytest.raises(EngineError, match="after its update window closed"):
            sink.write(llama.tensors()[0])
        await engine.close()

    asyncio.run(main())


async def _started(engine, tokens):
    while (await engine.status()).generated_tokens < tokens:
        await asyncio.sleep(0.001)


def test_drain_finishes_what_was_taken_before(llama, make, collect):
    async def main():
        engine = await llama.engine(slots=2, max_len=512)
        early = asyncio.create_task(collect(engine, _request("early", n=5, max_tokens=100)))
        await _started(engine, 4)
        async with engine.update_weights(1, in_flight="drain") as sink:
            assert early.done()
            late = asyncio.create_task(collect(engine, _request("late")))
            await asyncio.sleep(0.02)
            assert not late.done()
            for tensor in make(llama.name, 1).tensors():
                sink.write(tensor)
        assert [[(s.version, s.length) for s in c.versions] for c in await early] == [[(0, 100)]] * 5
        assert [s.version for s in (await late)[0].versions] == [1]
        await engine.close()

    asyncio.run(main())


def test_keep_pauses_and_goes_on_with_spans_by_version(llama, make, collect):
    length = 1000 if llama.own else 200

    async def main():
        engine = await llama.engine(slots=2, max_len=2048)
        task = asyncio.create_task(collect(engine, _request(n=3, max_tokens=length)))
        for version in (1, 2):
            before = (await engine.status()).generated_tokens
            await _started(engine, before + 20)
            async with engine.update_weights(version, in_flight="keep") as sink:
                made = (await engine.status()).generated_tokens
                await asyncio.sleep(0.02)
                assert (await engine.status()).generated_tokens == made
                for tensor in make(llama.name, version).tensors():
                    sink.write(tensor)
        completions = await task
        for completion in completions:
            assert sum(span.length for span in completion.versions) == len(completion.token_ids_T) == length
            assert [s.version for s in completion.versions] == sorted({s.version for s in completion.versions})
        assert [s.version for s in completions[0].versions] == [0, 1, 2]
        assert [s.version for s in completions[2].versions] == [2]
        # The last starts under the newest weights, so its prompt must have been computed anew by them.
        fresh = await make(llama.name, 2).engine(slots=2, max_len=2048)
        alone = (await collect(fresh, _request(n=3, max_tokens=length)))[2]
        assert completions[2].logprobs_T.tobytes() == alone.logprobs_T.tobytes()
        await engine.close()
        await fresh.close()

    asyncio.run(main())


def test_a_cancelled_drain_goes_on_with_the_old_weights(llama, collect):
    async def main():
        engine = await llama.engine(slots=3, max_len=4096)
        task = asyncio.create_task(collect(engine, _request(n=2, max_tokens=4000)))
        await _started(engine, 4)

        async def publish():
            async with engine.update_weights(1, in_flight="drain"):
                raise AssertionError

        window = asyncio.create_task(publish())
        await asyncio.sleep(0.005)
        window.cancel()
        with pytest.raises(asyncio.CancelledError):
            await window
        later = await collect(engine, _request("later", max_tokens=1))
        assert later[0].versions[0].version == 0
        assert not task.done()
        await engine.abort(["r"])
        assert {s.version for c in await task for s in c.versions} == {0}
        await engine.close()

    asyncio.run(main())


def test_two_windows_at_once_are_refused(llama):
    async def main():
        engine = await llama.engine()
        async with engine.update_weights(1, in_flight="drain") as sink:
            with pytest.raises(EngineError, match="open already"):
                async with engine.update_weights(2, in_flight="drain"):
                    pass
            for tensor in llama.tensors():
                sink.write(tensor)
        assert (await engine.status()).version == 1
        await engine.close()

    asyncio.run(main())


def test_weights_that_are_not_finite_fail_requests_and_a_later_publication_heals(llama, collect):
    async def main():
        engine = await llama.engine()
        (want,) = await collect(engine, _request())
        async with engine.update_weights(1, in_flight="drain") as sink:
            for tensor in llama.tensors():
                sink.write(NamedTensor(name=tensor.name, data=torch.full_like(tensor.data, float("nan"))))
        for _ in range(2):
            with pytest.raises(EngineError, match="version 1 give a log-prob that is not finite") as caught:
                await collect(engine, _request())
            assert isinstance(caught.value.__cause__, TrainError)
        assert not (await engine.status()).healthy
        await llama.publish(engine, 2)
        (got,) = await collect(engine, _request())
        assert got.logprobs_T.tobytes() == want.logprobs_T.tobytes()
        await engine.close()

    asyncio.run(main())


def _fails_once(monkeypatch, forward, name, after=0):
    """The method ``name`` of ``forward`` finds no memory, the first time after ``after`` calls."""
    whole, calls = getattr(forward, name), itertools.count()

    def short(*given):
        if next(calls) == after:
            raise MemoryError("no memory left")
        return whole(*given)

    monkeypatch.setattr(forward, name, short)


@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
def test_a_window_that_finds_no_memory_to_begin_goes_on_with_the_old_weights(llama, collect, monkeypatch, in_flight):
    async def main():
        engine = await llama.engine(slots=2, max_len=64)
        _fails_once(monkeypatch, engine._forward, "window")
        running = asyncio.create_task(collect(engine, _request("running", n=4, max_tokens=40)))
        await _started(engine, 5)
        with pytest.raises(MemoryError):
            async with engine.update_weights(1, in_flight=in_flight):
                pass
        assert [len(c.token_ids_T) for c in await running] == [40] * 4
        assert (await engine.status()).version == 0
        await llama.publish(engine, 2)
        assert len(await collect(engine, _request())) == 1
        await engine.close()

    asyncio.run(main())


def test_a_window_that_finds_no_memory_to_end_fails_requests_and_a_later_one_heals(llama, collect, monkeypatch):
    async def main():
        engine = await llama.engine(slots=2, max_len=64)
        _fails_once(monkeypatch, engine._forward, "settle")
        with pytest.raises(MemoryError):
            await llama.publish(engine, 1)
        with pytest.raises(EngineError, match="last weight update did not finish"):
            await collect(engine, _request())
        await llama.publish(engine, 2)
        assert len(await collect(engine, _request())) == 1
        await engine.close()

    asyncio.run(main())


def test_caches_that_were_not_all_taken_are_taken_again(llama, collect, monkeypatch):
    async def main():
        engine = await llama.engine(slots=2, max_len=64)
        await engine.set_memory("kv_released")
        _fails_once(monkeypatch, engine._forward, "new_cache", after=1)
        with pytest.raises(MemoryError):
            await engine.set_memory("awake")
        assert (await engine.status()).memory == "kv_released"
        await engine.set_memory("awake")
        assert len(await collect(engine, _request())) == 1
        await engine.close()

    asyncio.run(main())
