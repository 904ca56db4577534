"""The order in which a phase draws its prompts, as its recipe says: which draw takes which prompt.

An order belongs to one attempt at a phase, since it may learn from what came of its draws. Formulas are in ``data``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stretto.config.orders import DifficultyOrder, Order, SuccessOrder
from stretto.data.difficulty import DifficultyDraws, levels_of
from stretto.data.order import DrawOrder
from stretto.data.seeds import Namespace, choice_seed, order_seed
from stretto.data.success import SuccessDraws
from stretto.errors import PoolError
from stretto.runtime.pool import Taken
from stretto.types import Prompt

__all__ = ["PromptOrder", "order_maker", "success_rates"]


class PromptOrder(Protocol):
    """Which prompt each draw takes."""

    def item(self, draw: int) -> int:
        """The index of the prompt; the same as long as the draw is in the pool."""
        ...

    def saw(self, rates: Mapping[int, float | None]) -> None:
        """What came of the draws of a step: success rates, None where no attempt was judged."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from it; called on a fresh order only."""
        ...


class _Fixed:
    """An order that is a function of the draw alone."""

    def __init__(self, item: Callable[[int], int]) -> None:
        self._item = item

    def item(self, draw: int) -> int:
        """What the function gives."""
        return self._item(draw)

    def saw(self, rates: Mapping[int, float | None]) -> None:
        """It learns nothing."""

    def state(self) -> dict[str, Any]:
        """It has none."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to restore."""


def order_maker(order: Order, prompts: Sequence[Prompt], seed: int, namespace: Namespace) -> Callable[[], PromptOrder]:
    """Makes a fresh order of ``prompts`` whenever it is called. Raises DataError for prompts that cannot be ordered."""
    shuffled = DrawOrder(len(prompts), order_seed(seed, namespace))
    if isinstance(order, SuccessOrder):
        return lambda: SuccessDraws(shuffled, order, lambda draw: choice_seed(seed, namespace, draw))
    if isinstance(order, DifficultyOrder):
        levels = levels_of(prompts, order)
        by_level = DifficultyDraws(shuffled, levels, passes=order.passes, spread=order.spread)
        return lambda: _Fixed(by_level.item)
    return lambda: _Fixed(shuffled.item)


def success_rates(order: Order, taken: Taken) -> dict[int, float | None]:
    """By draw, the share of its judged attempts that succeeded, where ``order`` follows it; filtered groups too.

    Raises PoolError for a group to train on that has no reward.
    """
    if not isinstance(order, SuccessOrder):
        return {}
    score = order.score or ""
    rewards = {drawn.draw: drawn.scores.get(score, ()) for drawn in taken.drawn}
    unjudged = next((draw for draw, found in rewards.items() if not found), None)
    if unjudged is not None:
        called = "" if order.score is None else f" called {order.score!r} (order.score)"
        raise PoolError(
            f"order.type=success follows rewards, and no attempt of draw {unjudged} has one{called}. Use a workflow "
            "that gives it, or order.type=shuffle."
        )
    rewards |= {draw: dropped.scores.get(score, ()) for draw, dropped in taken.dropped.items()}
    return {
        draw: sum(reward >= order.full_mark for reward in found) / len(found) if found else None
        for draw, found in rewards.items()
    }
