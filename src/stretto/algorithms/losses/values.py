"""The loss of a critic."""

import torch

from stretto.algorithms.losses.metrics import mean_of, total_of
from stretto.algorithms.losses.tokens import LossOutput, Tokens

__all__ = ["value_clip"]


def value_clip(tokens: Tokens, *, value_clip: float | None = 0.2) -> LossOutput:
    """``max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2) / 2``; None: ``(V - R)^2 / 2``.

    Columns: ``returns``; ``old_values`` (left out: no clipping). Schulman et al. 2017 as in OpenAI's baselines.
    """
    kept = tokens.trained()
    values_N, returns_N = kept.critic_values(), kept.column("returns")
    error_N = (values_N - returns_N).square()
    loss_N, hit_N = error_N, torch.zeros_like(error_N, dtype=torch.bool)
    if value_clip is not None and "old_values" in kept.columns:
        old_N = kept.columns["old_values"]
        held_N = torch.clamp(values_N, old_N - value_clip, old_N + value_clip)
        clipped_error_N = (held_N - returns_N).square()
        hit_N = clipped_error_N > error_N
        loss_N = torch.where(hit_N, clipped_error_N, error_N)
    total = kept.weighted_sum(loss_N / 2)
    metrics = {
        "loss": total_of(total),
        "clip_frac": mean_of(hit_N),
        "value": mean_of(values_N),
        "error": mean_of(error_N),
    }
    return LossOutput(total=total, metrics=metrics)
