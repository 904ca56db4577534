"""The coefficient of a KL term as it changes from update to update. The coefficient itself is the whole state."""

import math

from stretto.errors import ConfigError

__all__ = ["adapted_coef"]


def adapted_coef(coef: float, kl: float, *, target: float, horizon: float, steps: float) -> float:
    """The coefficient after an update on ``steps`` samples whose KL was measured as ``kl``, steering to ``target``.

    ``coef (1 + K e)`` with the proportional error ``e = clip(kl / target - 1, -0.2, 0.2)``: Ziegler et al. 2019,
    arXiv:1909.08593, section 2.2. The gain K is 0.1 there and ``steps / horizon`` here, as in later implementations, so
    that it grows with the samples of an update. ``kl`` and ``target`` are in the same unit, both per sample or token.

    A KL that is not finite belongs to an update that is skipped, and changes nothing. ConfigError where one update
    could take the coefficient to 0.
    """
    if steps >= 5 * horizon:
        raise ConfigError(
            f"the KL horizon is {horizon:g} and an update has {steps:g} samples: one update could take the coefficient "
            "to 0. Set the horizon to the samples of several updates."
        )
    if not math.isfinite(kl):
        return coef
    return coef * (1 + min(max(kl / target - 1, -0.2), 0.2) * steps / horizon)
