"""The start-up probe of batch invariance: whether this machine's kernels keep a row's bits in any company."""

import asyncio
from collections.abc import Sequence

import numpy as np

from stretto.errors import EngineError
from stretto.roles import Completion, Request, RolloutEngine, Sampling

__all__ = ["probe_invariance"]

_NUM_TOKENS = 3


async def probe_invariance(engine: RolloutEngine, *, slots: int, max_len: int, vocab_size: int) -> None:
    """Generate two short requests alone, then again among others, in another order and with a longer KV buffer.

    Costs about ten decode steps. Raises EngineError if a token or a bit of a log-prob differs.
    """
    rng = np.random.default_rng(0)
    tokens = min(_NUM_TOKENS, max_len - 1)
    room = max_len - tokens
    probes = [_request(rng, i, min(length, room), 1, tokens, vocab_size) for i, length in enumerate((5, 11))]
    alone = [await _run(engine, probe) for probe in probes]
    companions = [_request(rng, 2, min(70, room), max(1, min(slots - 2, 21)), tokens, vocab_size)]
    companions += [_request(rng, 3, min(3, room), 1, tokens, vocab_size)]
    crowd = await _run_together(engine, [companions[0], probes[1], companions[1], probes[0]])
    for probe, first, second in zip(probes, alone, (crowd[3], crowd[1]), strict=True):
        same = np.array_equal(first.token_ids_T, second.token_ids_T) and (
            first.logprobs_T.tobytes() == second.logprobs_T.tobytes()
        )
        if not same:
            raise EngineError(
                f"The native engine is not batch-invariant on this machine: {probe.id} gave log-probs "
                f"{first.logprobs_T.tolist()} alone and {second.logprobs_T.tolist()} in company. Set engine.threads=1; "
                "if it is 1 already, set schedule.deterministic=false (runs then repeat only to rounding)."
            )


def _request(rng: np.random.Generator, number: int, length: int, samples: int, tokens: int, vocab_size: int) -> Request:
    return Request(
        id=f"stretto-invariance-probe-{number}",
        token_ids=rng.integers(0, vocab_size, length).astype(np.int32),
        seeds=tuple(range(samples)),
        sampling=Sampling(max_tokens=tokens),
        deadline_s=60.0,
    )


async def _run(engine: RolloutEngine, request: Request) -> Completion:
    completions = [completion async for completion in engine.generate(request)]
    return min(completions, key=lambda completion: completion.index)


async def _run_together(engine: RolloutEngine, requests: Sequence[Request]) -> list[Completion]:
    """The completion of each request's first seed; submitted in order."""
    return list(await asyncio.gather(*(_run(engine, request) for request in requests)))
