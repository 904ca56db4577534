"""Draws that prefer prompts whose recent success rate is near a target.

Which prompt a draw gets is decided once, when it is first asked for, from what ``saw`` was told before and from the
draws under way; chance comes from a generator counted by the draw. Weights are whole numbers, so the choice has the
same bits everywhere. ``state`` and ``restore`` carry all of it over.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.config.orders import SuccessOrder
from stretto.data.order import DrawOrder

__all__ = ["SuccessDraws"]

_UNIT = 2**31
"""The weight of a prompt at the target. Sums over 2**31 prompts still fit into 63 bits."""


class SuccessDraws:
    """Prompts by chance in proportion to ``floor + (1 - floor) * (1 - |rate - target| / max(target, 1 - target))``.

    ``rate`` is the exponential average of the success rates of a prompt's groups; one without any has rate ``target``.
    Prompts are drawn without replacement among the draws that are under way, as far as there are enough of them.
    """

    def __init__(self, shuffled: DrawOrder, order: SuccessOrder, chance: Callable[[int], int]) -> None:
        """``shuffled`` is the order of the first pass, ``chance`` a draw's random number in [0, 2**64)."""
        self._shuffled, self._order, self._chance = shuffled, order, chance
        self._rates: dict[int, float] = {}
        self._under_way: dict[int, int] = {}
        self._weights: NDArray[np.int64] = np.full(shuffled.n, _UNIT, np.int64)

    def item(self, draw: int) -> int:
        """The index of the prompt that ``draw`` takes: the same until ``saw`` was told what came of it."""
        if draw not in self._under_way:
            self._under_way[draw] = self._choose(draw)
        return self._under_way[draw]

    def saw(self, rates: Mapping[int, float | None]) -> None:
        """What came of draws: the share of a group's attempts that succeeded, None where no attempt was judged.

        Draws that this order did not make (of a fork that had another) are left out.
        """
        for draw in sorted(rates):
            item, rate = self._under_way.pop(draw, None), rates[draw]
            if item is not None and rate is not None:
                before = self._rates.get(item, rate)
                self._set(item, before + self._order.newest * (rate - before))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {
            "under_way": {str(draw): item for draw, item in sorted(self._under_way.items())},
            "rates": {str(item): rate for item, rate in sorted(self._rates.items())},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the state of a fresh order. That of another kind of order holds nothing to go on from."""
        self._under_way = {int(draw): item for draw, item in state.get("under_way", {}).items()}
        for item, rate in state.get("rates", {}).items():
            self._set(int(item), rate)

    def _set(self, item: int, rate: float) -> None:
        o = self._order
        near = 1.0 - abs(rate - o.target) / max(o.target, 1.0 - o.target)
        self._rates[item] = rate
        self._weights[item] = max(1, int((o.floor + (1.0 - o.floor) * near) * _UNIT))

    def _choose(self, draw: int) -> int:
        n = self._shuffled.n
        if self._order.first_pass and draw < n:
            return self._shuffled.item(draw)
        busy = np.bincount(np.fromiter(self._under_way.values(), np.int64), minlength=n)
        ends = np.cumsum(np.where(busy == busy.min(), self._weights, 0))
        place = self._chance(draw) * int(ends[-1]) >> 64
        return int(np.searchsorted(ends, place, side="right"))
