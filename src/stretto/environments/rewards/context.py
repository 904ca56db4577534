"""What a reward with a parameter ``context`` is given: the occasion of the judgement, and a place to log numbers."""

import math
import numbers
from typing import cast

import numpy as np

from stretto.errors import RewardError
from stretto.types import Group, Occasion

__all__ = ["Context"]


class Context:
    """The occasion of one call of a reward.

    ``phase``: "train", "warmup" or "evaluation". ``step``: the step this group is for, from 0; in an evaluation, the
    steps done. ``steps``: those of the phase, or None if that is not known. ``version``: the oldest weights that wrote
    one of the siblings, or None. ``seed``: the run's.
    """

    __slots__ = ("logged", "phase", "seed", "step", "steps", "version")

    def __init__(self, occasion: Occasion, group: Group) -> None:
        self.phase, self.step, self.steps, self.seed = occasion.phase, occasion.step, occasion.steps, occasion.seed
        self.version = min((s.version for t in group.trajectories for s in t.versions), default=None)
        self.logged: dict[str, list[float]] = {}

    def log(self, name: str, value: float) -> None:
        """Record a number: the mean of all that a step's rewards log becomes the metric ``logged/NAME``."""
        if isinstance(value, np.generic):
            value = cast("float", value.item())
        if not name or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise RewardError(f"it logged {name!r} as {value!r}. Log a finite number under a name.")
        self.logged.setdefault(str(name), []).append(float(value))
