"""Proves that an engine holds the weights that were published: its log-probs of fresh samples against the trainer's.

Fused, tied, sharded or cast tensors cannot be compared by hash; a stale or wrong one shows as whole nats here.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stretto.errors import ConfigError, EngineError
from stretto.roles import BatchInvariant, Sampling
from stretto.runtime.parts import Parts
from stretto.types import Batch, Prompt
from stretto.workflows.nodes import rollout

__all__ = ["probe_invariance", "probe_weights"]

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.3}
"""Largest mean gap in nats. In bfloat16 about 0.045 is usual; stale weights are off by more than 1."""


async def probe_invariance(parts: Parts) -> None:
    """A deterministic run needs an engine that is batch-invariant, here and now. Raises ConfigError or EngineError."""
    if not isinstance(parts.engine, BatchInvariant):
        raise ConfigError(
            f"schedule.deterministic=true needs a batch-invariant engine, and {type(parts.engine).__name__} does "
            "not promise to be one. Set schedule.deterministic=false, or use engine.type=native."
        )
    await parts.engine.probe_invariance()


async def probe_weights(
    parts: Parts, prompts: Sequence[Prompt], sampling: Sampling, *, tolerance: float | None = None
) -> float:
    """Sample a little and compare: the mean gap in nats. Raises EngineError with it if engine and trainer disagree.

    ``tolerance``: the largest gap that is none; None: by the engine's precision.
    """
    most = TOLERANCE[parts.precision] if tolerance is None else tolerance
    plain = Sampling(temperature=1.0, max_tokens=min(sampling.max_tokens, 16), stop_ids=sampling.stop_ids)
    binding = replace(parts.binding("evaluation", plain), episodes=None, budget=None)  # one turn says enough
    groups = []
    try:
        for draw, prompt in enumerate(prompts):
            alone = binding.environment(draw)
            groups.append(await rollout(prompt, binding.generate("policy", draw), binding.tokenize(draw), alone, n=2))
    except EngineError as error:
        raise EngineError(
            f"the engine cannot sample from the weights that were just published, as if some had not arrived: {error}"
        ) from error
    batch = Batch(groups=tuple(groups))
    async with parts.colocation.scoring():
        (trained,) = await parts.worker.call(parts.backend.score, "policy", batch, frozenset({"logprobs"}))
    sampled = np.concatenate([t.logprobs_T for t in batch.trajectories])
    written = batch.mask != 0
    gap = float(np.abs(trained.values[written] - sampled[written]).mean())
    if not gap <= most:
        raise EngineError(
            f"the engine's log-probs differ from the trainer's by {gap:.3g} nats on average after publication (at most "
            f"{most} in {parts.precision}): it does not hold the weights that were sent. "
            "Check that the model folder's config.json fits its weights, and report this with the model's name."
        )
    return gap
