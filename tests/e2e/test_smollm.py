"""SmolLM2 through the real parts: chat prompts, sampling, one step, export. Slow: minutes on a busy machine."""

import asyncio

import numpy as np
import pytest

import stretto
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.backends import TorchBackendConfig
from stretto.data.locations import SMOLLM2
from stretto.data.tokens import load_tokenizer
from stretto.engines.native import NativeEngine
from stretto.roles import Request, Sampling
from stretto.types import Batch, Group, Key, Message, Prompt, Trajectory

QUESTION = (Message(role="user", content="What is 2+2? Answer with the number only."),)


@pytest.mark.slow
def test_the_trainer_gives_the_log_probs_of_the_sampler():
    tokenizer = load_tokenizer(SMOLLM2)
    prompt_ids = tokenizer.encode_prompt(QUESTION)
    backend = TorchBackend({"policy": ModelSpec(path=SMOLLM2, trainable=False)}, TorchBackendConfig(), 0)
    engine = NativeEngine(load_hf_config(SMOLLM2), slots=2, max_len=len(prompt_ids) + 16, threads=1)

    async def sample(temperature: float) -> list[Trajectory]:
        sampling = Sampling(max_tokens=16, stop_ids=tokenizer.stop_ids, temperature=temperature)
        request = Request(id=f"t{temperature}", token_ids=prompt_ids, seeds=(1, 2), sampling=sampling)
        rows = []
        async for c in engine.generate(request):
            before = np.zeros(len(prompt_ids), np.float32)
            rows.append(
                Trajectory(
                    key=Key(0 if temperature else 1, c.index),
                    token_ids_T=np.concatenate([prompt_ids, c.token_ids_T]),
                    mask_T=np.concatenate([before, np.ones(len(c.token_ids_T))]).astype(np.uint8),
                    logprobs_T=np.concatenate([before, c.logprobs_T]),
                    versions=c.versions,
                    finish=c.finish,
                    text=tokenizer.decode(c.token_ids_T),
                )
            )
        return rows

    async def both() -> list[list[Trajectory]]:
        async with engine.update_weights(0, in_flight="drain") as sink:
            for tensor in backend.tensors("policy"):
                sink.write(tensor)
        try:
            return [await sample(1.0), await sample(0.0)]
        finally:
            await engine.close()

    sampled, greedy = asyncio.run(both())
    assert all(t.text.endswith("4") and t.finish == "stop" for t in greedy), [t.text for t in greedy]
    prompt = Prompt(uid="p", text="", token_ids=prompt_ids, messages=QUESTION)
    batch = Batch(
        groups=tuple(Group(draw=t[0].key.draw, prompt=prompt, trajectories=tuple(t)) for t in (sampled, greedy))
    )
    (scored,) = backend.score("policy", batch, frozenset({"logprobs"}))
    written = batch.mask == 1
    gap = np.abs(scored.values - np.concatenate([t.logprobs_T for t in batch.trajectories]))[written]
    assert gap.max() < 1e-4, gap.max()


@pytest.mark.slow
def test_a_step_is_trained_and_exported(tmp_path):
    run = stretto.train(
        "grpo",
        model=SMOLLM2,
        prompts=[{"prompt": [{"role": "user", "content": "Name a number."}], "answer": "4"}],
        reward="exact_match",
        steps=1,
        runs_dir=str(tmp_path),
        name="smol",
        sampling={"n": 2, "max_tokens": 4},
        schedule={"groups_per_step": 1},
        backend={"threads": 1, "lr": 1e-6},
        engine={"slots": 2},
    )
    assert run.metrics["sampler_gap_max"] < 1e-4
    exported = load_tokenizer(run.path / "model")
    ours = load_tokenizer(SMOLLM2)
    assert exported.encode_prompt(QUESTION).tolist() == ours.encode_prompt(QUESTION).tolist()
    assert (exported.stop_ids, exported.turn_end) == (ours.stop_ids, ours.turn_end)
    assert load_hf_config(str(run.path / "model"))["max_position_embeddings"] == 8192
