"""Proves that engines hold the weights that were published: their log-probs of fresh samples against the trainer's.

Fused, tied, sharded or cast tensors cannot be compared by hash; a stale or wrong one shows as whole nats here.
"""

from collections.abc import Sequence

from stretto.errors import EngineError
from stretto.roles import Sampling
from stretto.runtime.learning import sampler_gap
from stretto.runtime.parts import Parts

__all__ = ["probe_weights"]

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.3}
"""Largest mean gap in nats. In bfloat16 about 0.045 is usual; stale weights are off by more than 1."""


async def probe_weights(
    parts: Parts, phase: int, items: Sequence[int], sampling: Sampling, *, tolerance: float | None = None
) -> float:
    """Sample a little at prompts ``items`` of a phase and compare, engine by engine: the largest of their mean gaps in
    nats. Raises EngineError with it if an engine and the trainer disagree.

    ``tolerance``: the largest gap that is none; None: by the engine's precision.
    """
    most = TOLERANCE[parts.precision] if tolerance is None else tolerance
    plain = Sampling(temperature=1.0, max_tokens=min(sampling.max_tokens, 16), stop_ids=sampling.stop_ids)
    gaps: list[float] = []
    for refs in await parts.rollers.probe(phase, items, plain):
        async with parts.colocation.scoring():
            gaps.append(await parts.learners.call(sampler_gap, refs))
        parts.plane.free(refs)
    worst = next((gap for gap in gaps if not gap <= most), max(gaps))  # one that is no number too
    if not worst <= most:
        which = "the engine's" if len(gaps) == 1 else f"engine {gaps.index(worst)}'s"
        raise EngineError(
            f"{which} log-probs differ from the trainer's by {worst:.3g} nats on average after publication (at most "
            f"{most} in {parts.precision}): it does not hold the weights that were sent. "
            "Check that the model folder's config.json fits its weights, and report this with the model's name."
        )
    return worst
