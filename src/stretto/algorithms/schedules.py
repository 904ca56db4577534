"""Learning rates as pure functions of the step."""

import math
from typing import Literal

from stretto.algorithms.names import known_names_only

__all__ = ["lr_at"]


@known_names_only
def lr_at(
    step: int, *, steps: int, peak: float, warmup: int = 0, decay: Literal["constant", "linear", "cosine"] = "constant"
) -> float:
    """The learning rate of ``step`` (from 0) out of ``steps``.

    It rises linearly over the first ``warmup`` steps (the first takes ``peak / warmup``, none takes 0), then stays or
    falls so that it would be 0 at ``step == steps``, one after the last.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if decay == "constant":
        return peak
    done = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return peak * (1 - done) if decay == "linear" else peak * (1 + math.cos(math.pi * done)) / 2
