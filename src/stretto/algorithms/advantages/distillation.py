"""Advantages from a teacher: the reverse KL of each token that was sampled, as its own reward."""

import numpy as np

from stretto.types import Batch, Column, Credit, Metric

__all__ = ["teacher_credit"]


def teacher_credit(batch: Batch, teacher: Column) -> Credit:
    """Advantages ``log p_teacher(token) - log p_policy(token)``, the policy's as the engine sampled it.

    The gradient of ``-A log p`` is then, in expectation over the token, that of KL(policy || teacher) in the token's
    own state (the score's mean is 0, so the 1 of the product rule adds nothing); states that a token leads to are not
    counted. Lu et al. 2025 (On-policy distillation); Gu et al. 2023, arXiv:2306.08543, section 2.2, has this as
    its single-step part and adds what follows. The metric ``divergence`` is the estimate of the reverse KL, mean over
    tokens.
    """
    written = batch.mask != 0
    sampled = np.concatenate([np.zeros(0, np.float32), *(t.logprobs_T for t in batch.trajectories)])
    gap = np.zeros(batch.num_tokens)
    gap[written] = teacher.values[written].astype(np.float64) - sampled[written]
    metrics = {"divergence": Metric("mean", float(-gap.sum()), batch.num_written)}
    return Credit(advantages=Column.per_token("advantages", batch, gap), metrics=metrics)
