"""The life of requests in the engine: endings, validation, deadlines, aborts, memory, closing."""

import asyncio
import threading

import numpy as np
import psutil
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from stretto.engines.native import NativeEngine
from stretto.errors import ConfigError, DataError, EngineError
from stretto.roles import NamedTensor, Request, Sampling

PROMPT = np.arange(6, dtype=np.int32)


def _request(name="r", n=1, prompt=PROMPT, deadline_s=None, **sampling):
    return Request(
        id=name, token_ids=prompt, seeds=tuple(range(n)), sampling=Sampling(**sampling), deadline_s=deadline_s
    )


async def _started(engine, tokens):
    while (await engine.status()).generated_tokens < tokens:
        await asyncio.sleep(0.001)


def test_endings_by_stop_and_by_length(llama, collect):
    async def main():
        engine = await llama.engine(slots=16)
        completions = await collect(engine, _request(n=64, max_tokens=10, stop_ids=tuple(range(0, 97, 9))))
        assert [c.index for c in completions] == list(range(64))
        for completion in completions:
            stops = completion.token_ids_T % 9 == 0
            assert not stops[:-1].any()
            assert completion.finish == ("stop" if stops[-1] else "length")
            assert stops[-1] or len(completion.token_ids_T) == 10
            assert completion.token_ids_T.dtype == np.int32 and completion.logprobs_T.dtype == np.float32
        assert {c.finish for c in completions} == {"stop", "length"}
        assert len({c.token_ids_T.tobytes() for c in completions}) > 50  # pitfall 21
        await engine.close()

    asyncio.run(main())


def test_a_group_computes_its_prompt_once_even_beyond_the_slots(llama, collect):
    async def main():
        engine = await llama.engine(slots=3)
        many = await collect(engine, _request("many", n=10, max_tokens=5))
        status = await engine.status()
        assert (status.prefilled_tokens, status.generated_tokens) == (6, 50)
        for completion in many:
            one = Request(id="one", token_ids=PROMPT, seeds=(completion.index,), sampling=Sampling(max_tokens=5))
            (alone,) = await collect(engine, one)
            assert alone.logprobs_T.tobytes() == completion.logprobs_T.tobytes()
        await engine.close()

    asyncio.run(main())


def test_completions_stream_as_they_finish(llama):
    async def main():
        engine = await llama.engine(slots=2, max_len=128)
        seen = [c.index async for c in engine.generate(_request(n=6, max_tokens=3))]
        assert sorted(seen) == list(range(6))
        generator = engine.generate(_request("left", n=6, max_tokens=100))
        await anext(generator)
        assert "left" in (await engine.status()).pending
        await generator.aclose()
        assert (await engine.status()).pending == {}
        assert len([c async for c in engine.generate(_request("left", n=2, max_tokens=3))]) == 2
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 0}, "no seeds"),
        ({"prompt": np.zeros(0, np.int32)}, "empty prompt"),
        ({"prompt": np.array([1, 97], np.int32)}, "from 1 to 97, and the model's are 0 to 96"),
        ({"prompt": np.array([-1, 2], np.int32)}, "from -1 to 2"),
        ({"max_tokens": 123}, r"6 prompt tokens \+ max_tokens 123 = 129, and the engine's max_len is 128"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"temperature": -1.0}, "temperature -1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_p": 0.0}, r"top_p 0\.0"),
        ({"top_p": 1.5}, r"top_p 1\.5"),
        ({"min_p": -0.1}, r"min_p -0\.1"),
        ({"min_p": 1.5}, r"min_p 1\.5"),
        ({"stop": ("\n", "")}, "has an empty stop string"),
        ({"stop": ("\n",)}, "has stop strings, and the engine was made without decode="),
    ],
)
def test_what_cannot_be_generated_is_refused_with_the_numbers(llama, collect, change, words):  # pitfall 26
    async def main():
        engine = await llama.engine()
        with pytest.raises(DataError, match=words):
            await collect(engine, _request(**change))
        assert len(await collect(engine, _request(max_tokens=122))) == 1
        await engine.close()

    asyncio.run(main())


def test_settings_that_cannot_work_are_refused(llama):
    for change, words in [
        ({"slots": 0}, "slots of the native engine must be at least 1, got 0"),
        ({"max_len": 1}, "max_len of the native engine must be at least 2"),
        ({"threads": 0}, "threads"),
        ({"dtype": "float16"}, "no dtype 'float16'.*bfloat16|no dtype 'float16'.*float32"),
        ({"max_len": 4097}, "4097 of the native engine is past the 4096 positions"),
    ]:
        with pytest.raises(ConfigError, match=words):
            llama.empty_engine(**{"slots": 4, "max_len": 64, **change})


def test_an_id_is_pending_only_once(llama, collect):
    async def main():
        engine = await llama.engine()
        task = asyncio.create_task(collect(engine, _request(max_tokens=50)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="'r' is pending already"):
            await collect(engine, _request())
        await task
        await engine.close()

    asyncio.run(main())


def test_abort_yields_what_was_written(llama, collect):
    async def main():
        engine = await llama.engine(slots=2, max_len=4096)
        task = asyncio.create_task(collect(engine, _request("long", n=4, max_tokens=4000)))
        other = asyncio.create_task(collect(engine, _request("other", max_tokens=5)))
        await _started(engine, 10)
        await engine.abort(["long", "unknown", "long"])
        completions = await task
        assert [c.finish for c in completions] == ["aborted"] * 4
        assert [0 < len(c.token_ids_T) < 4000 for c in completions] == [True, True, False, False]
        assert [len(c.token_ids_T) for c in completions] == [sum(s.length for s in c.versions) for c in completions]
        assert (await other)[0].finish == "length"
        await engine.close()

    asyncio.run(main())


def test_a_deadline_names_the_request_while_running_waiting_or_paused(llama, collect):  # pitfall 4
    async def main():
        engine = await llama.engine(slots=1, max_len=4096)
        running = asyncio.create_task(collect(engine, _request("running", n=20, max_tokens=4000, deadline_s=0.2)))
        waiting = asyncio.create_task(collect(engine, _request("waiting", max_tokens=5, deadline_s=0.1)))
        with pytest.raises(EngineError, match=r"'waiting' .* deadline of 0\.1 s, with 0 tokens made.* 1 not started"):
            await waiting
        with pytest.raises(EngineError, match=r"'running' has been pending for 0\.\d s.* with [1-9]\d* tokens made"):
            await running
        async with engine.update_weights(1, in_flight="keep") as sink:
            with pytest.raises(EngineError, match="'paused'"):
                await collect(engine, _request("paused", deadline_s=0.05))
            for tensor in llama.tensors():
                sink.write(tensor)
        assert len(await collect(engine, _request("paused", deadline_s=60.0))) == 1
        await engine.close()

    asyncio.run(main())


def test_close_ends_pending_requests_and_the_thread(llama, collect):
    async def main():
        engine = await llama.engine(slots=2, max_len=4096)
        running = asyncio.create_task(collect(engine, _request("a", n=9, max_tokens=4000)))
        await _started(engine, 3)

        async def drain():
            async with engine.update_weights(1, in_flight="drain"):
                raise AssertionError

        opening = asyncio.create_task(drain())
        await asyncio.sleep(0.002)
        await asyncio.gather(engine.close(), engine.close())
        with pytest.raises(EngineError, match="'a' was not finished: The engine was closed"):
            await running
        with pytest.raises(EngineError, match="closed while an update window was opening"):
            await opening
        await engine.close()
        assert not (await engine.status()).healthy
        with pytest.raises(EngineError, match="engine that was closed"):
            await collect(engine, _request())
        for call in (engine.abort(["a"]), engine.set_memory("awake"), drain()):
            with pytest.raises(EngineError, match="closed"):
                await call
        assert not [t for t in threading.enumerate() if t.name == "stretto-native-engine"]

    asyncio.run(main())


@pytest.mark.parametrize("doing", ["nothing", "generating", "opening a window", "asked"])
def test_an_exit_in_the_thread_is_told_to_all_who_wait(llama, collect, doing):  # pitfalls 4, 32
    def leaves():
        raise SystemExit

    async def main():
        engine = await llama.engine(slots=2, max_len=4096)
        waiting = []
        if doing in ("generating", "opening a window"):
            waiting.append(asyncio.ensure_future(collect(engine, _request("a", n=9, max_tokens=4000))))
            await _started(engine, 3)
        if doing == "opening a window":

            async def drain():
                async with engine.update_weights(1, in_flight="drain"):
                    raise AssertionError

            waiting.append(asyncio.ensure_future(drain()))
            await asyncio.sleep(0.01)
        if doing == "asked":
            waiting.append(asyncio.ensure_future(engine._thread.ask(leaves)))
        else:
            engine._thread.post(leaves)
        for each in waiting:
            with pytest.raises(EngineError, match="lost its thread to SystemExit"):
                await asyncio.wait_for(each, 30)
        while not engine._thread.closed:
            await asyncio.sleep(0.001)
        with pytest.raises(EngineError, match="lost its thread to SystemExit"):
            await asyncio.wait_for(engine.abort(["a"]), 30)
        assert not (await engine.status()).healthy
        with pytest.raises(EngineError, match="came to an engine that lost its thread to SystemExit"):
            await collect(engine, _request("b"))
        await engine.close()
        assert not [t for t in threading.enumerate() if t.name == "stretto-native-engine"]

    asyncio.run(main())


def test_close_inside_an_open_window_does_not_hang(llama):
    async def close_inside(engine):
        async with engine.update_weights(1, in_flight="drain") as sink:
            for tensor in llama.tensors():
                sink.write(tensor)
            await engine.close()

    async def main():
        engine = await llama.engine()
        with pytest.raises(EngineError, match="closed"):
            await close_inside(engine)

    asyncio.run(main())


def test_memory_levels_free_and_restore(collect):
    config = LlamaConfig(
        vocab_size=100_000, hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).float()  # two matrices of 51 MB

    async def publish(engine, version):
        async with engine.update_weights(version, in_flight="drain") as sink:
            for name, value in model.state_dict().items():
                sink.write(NamedTensor(name=name, data=value))

    async def main():
        process = psutil.Process()
        engine = NativeEngine(config.to_dict(), slots=4, max_len=64)
        await publish(engine, 0)
        (want,) = await collect(engine, _request())
        await engine.set_memory("kv_released")
        assert (await engine.status()).memory == "kv_released"
        with pytest.raises(EngineError, match="KV cache is released"):
            await collect(engine, _request())
        await engine.set_memory("awake")
        assert (await collect(engine, _request()))[0].logprobs_T.tobytes() == want.logprobs_T.tobytes()
        held = process.memory_info().rss
        await engine.set_memory("weights_released")
        assert held - process.memory_info().rss > 80e6
        status = await engine.status()
        assert (status.memory, status.healthy) == ("weights_released", False)
        with pytest.raises(EngineError, match="weights are released"):
            await publish(engine, 1)
        await engine.set_memory("awake")
        with pytest.raises(EngineError, match="weights were released"):
            await collect(engine, _request())
        await engine.set_memory("kv_released")
        await publish(engine, 1)
        await engine.set_memory("awake")
        assert (await collect(engine, _request()))[0].logprobs_T.tobytes() == want.logprobs_T.tobytes()
        task = asyncio.create_task(collect(engine, _request("busy", max_tokens=50)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="requests busy are pending"):
            await engine.set_memory("kv_released")
        await task
        await engine.close()

    asyncio.run(main())


def test_thousands_of_requests_at_once(llama, collect):
    async def main():
        engine = await llama.engine(slots=64)
        rng = np.random.default_rng(0)
        prompts = rng.integers(0, 97, (2000, 6)).astype(np.int32)
        results = await asyncio.gather(
            *(
                collect(engine, _request(f"p{i}", prompt=prompt, max_tokens=2, temperature=0.0, deadline_s=120.0))
                for i, prompt in enumerate(prompts)
            )
        )
        assert all(len(completions) == 1 for completions in results)
        status = await engine.status()
        assert (status.prefilled_tokens, status.generated_tokens, status.pending) == (12_000, 4_000, {})
        await engine.close()

    asyncio.run(main())


def test_one_engine_serves_one_loop_after_another(llama, collect):
    engine = asyncio.run(llama.engine())
    first = asyncio.run(collect(engine, _request(n=2)))
    second = asyncio.run(collect(engine, _request(n=2)))
    assert [c.logprobs_T.tobytes() for c in first] == [c.logprobs_T.tobytes() for c in second]
    asyncio.run(engine.close())
