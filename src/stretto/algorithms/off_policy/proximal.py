"""The proximal log-probs: those of the policy that a surrogate's ratio, and its bounds, are taken to."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.algorithms.names import known_names_only
from stretto.algorithms.off_policy.ratios import Doubles
from stretto.config.algorithms.correction import ProximalKind
from stretto.types import Batch

__all__ = ["proximal_logprobs", "staleness"]


@known_names_only
def proximal_logprobs(
    kind: ProximalKind,
    sampler_N: ArrayLike,
    recomputed_N: ArrayLike | None = None,
    *,
    alpha: float | None = None,
    staleness_N: ArrayLike | None = None,
) -> Doubles | None:
    """The old log-probs [N] of a policy loss, or None with ``detach``.

    detach: the loss takes its own, without gradient, so the ratio is 1. sampler: the engine's. recompute:
    ``recomputed_N``, the trainer's at the start of the step. interpolate, on the line between them:

        prox = sampler + alpha (recomputed - sampler)

    with ``alpha`` in [0, 1], or by token from its staleness s in steps: ``alpha = 1 - 1/s``, the policy one step before
    the one that is trained, if versions lie evenly on that line. At s = 1 that is the sampler. At s = 0 there is
    nothing between, and alpha is 1.

    Decoupled PPO: Hilton et al. 2021, arXiv:2110.00641; Fu et al. 2025 (AReaL), arXiv:2505.24298, eq. 5. The line
    by staleness: Li et al. 2025 (A-3PO), arXiv:2512.06547; AReaL's code takes the sampler's where s = 0, and
    interpolates to the log-probs of each forward, where here they are those at the start of the step.
    """
    sampler = np.asarray(sampler_N, np.float64)
    if kind == "detach":
        return None
    if kind == "sampler":
        return sampler
    assert recomputed_N is not None, f"proximal={kind} needs recomputed log-probs"
    recomputed = np.asarray(recomputed_N, np.float64)
    if kind == "recompute":
        return recomputed
    assert (alpha is None) != (staleness_N is None), "interpolate needs alpha or staleness, and one of them only"
    if staleness_N is None:
        alpha_N = np.asarray(alpha, np.float64)
    else:
        lag_N = np.asarray(staleness_N, np.float64)
        alpha_N = np.where(lag_N > 0, 1 - 1 / np.maximum(lag_N, 1), 1.0)
    # Exactly what stands at the end: sampler + (recomputed - sampler) may be off by an ulp.
    return np.where(alpha_N == 1, recomputed, sampler + alpha_N * (recomputed - sampler))


def staleness(batch: Batch, step: int) -> NDArray[np.int64]:
    """Steps [N] by which the weights that wrote each token lag those of ``step``; 0 where no engine sampled."""
    spans = [span for t in batch.trajectories for span in t.versions]
    sampled = np.repeat([bool(t.versions) for t in batch.trajectories], np.diff(batch.offsets))
    lags = np.repeat([step - s.version for s in spans], [s.length for s in spans]).astype(np.int64)
    out = np.zeros(batch.num_tokens, np.int64)
    out[sampled & (batch.mask != 0)] = lags
    return out
