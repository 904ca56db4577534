"""Draws from easy to hard prompts, by a number that each prompt has. A pure function of seed, numbers and settings.

Shapes: P prompts, W draws of the way from easy to hard.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.config.orders import DifficultyOrder
from stretto.data.order import DrawOrder
from stretto.errors import DataError, nearest
from stretto.types import Prompt

__all__ = ["DifficultyDraws", "levels_of"]

_SPREAD = 1
"""A fifth word of the seed, so that the spread has a stream other than any permutation's."""


class DifficultyDraws:
    """The first W = passes x P of a shuffled order's draws, sorted by level; then that order goes on as it is.

    So after W draws, and after every later whole pass, each prompt has been drawn as often as the shuffled order does.
    The draw at place j of the strict order (of equal levels, as shuffled) goes where ``j / W + spread * u`` sorts it,
    u uniform in [0, 1): it strays by at most ``spread * W`` places.
    """

    def __init__(self, shuffled: DrawOrder, levels_P: NDArray[np.float64], *, passes: float, spread: float) -> None:
        """``levels_P``: larger is harder, one per item of ``shuffled``."""
        assert len(levels_P) == shuffled.n, (len(levels_P), shuffled.n)
        self._shuffled = shuffled
        way = max(1, round(passes * shuffled.n))
        whole = [shuffled.permutation(epoch) for epoch in range(math.ceil(way / shuffled.n))]
        items_W = np.concatenate(whole)[:way]
        strict_W = items_W[np.argsort(levels_P[items_W], kind="stable")]
        words = [shuffled.seed & 0xFFFFFFFF, shuffled.seed >> 32, 0, 0, _SPREAD]
        raw_W = np.random.PCG64(np.random.SeedSequence(words)).random_raw(way)
        places_W = np.arange(way) / way + spread * ((raw_W >> np.uint64(11)) * 2.0**-53)
        self._way = strict_W[np.argsort(places_W, kind="stable")]

    def item(self, draw: int) -> int:
        """The index of the prompt that ``draw`` >= 0 takes."""
        return int(self._way[draw]) if draw < len(self._way) else self._shuffled.item(draw)


def levels_of(prompts: Sequence[Prompt], order: DifficultyOrder) -> NDArray[np.float64]:
    """How hard each prompt is [P], larger is harder. Raises DataError naming a prompt that has no such number."""
    levels = np.array([_number(prompt, order.key) for prompt in prompts], np.float64)
    return levels if order.larger_is == "harder" else -levels


def _number(prompt: Prompt, key: str) -> float:
    if key not in prompt.data:
        raise DataError(
            f"order.key={key} is not in the data of prompt {prompt.uid!r}.{nearest(key, prompt.data)} Set it to a "
            "column with a number for every prompt (prompts.data names the columns that are kept)."
        )
    value = prompt.data[key]
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise DataError(
            f"order.key={key} sorts by a number, and prompt {prompt.uid!r} has {str(value)[:40]!r} there. Mend that "
            "row, or name another column."
        )
    return number
