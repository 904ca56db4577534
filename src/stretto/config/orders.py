"""In which order the main phase draws its prompts: a union on ``type``. The formulas are in ``stretto.data``."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stretto.config.base import Section

__all__ = ["DifficultyOrder", "Order", "ShuffledOrder", "SuccessOrder", "check_order"]


class ShuffledOrder(Section):
    """Every pass over the prompts in another random order."""

    type: Literal["shuffle"] = "shuffle"
    """Which order."""


class DifficultyOrder(Section):
    """From easy to hard prompts, by a number that each has; then every pass in another random order.

    The way holds the prompts that shuffled draws would hold, sorted.
    """

    type: Literal["difficulty"] = "difficulty"
    """Which order."""
    key: str
    """The number in a prompt's ``data`` that it is sorted by (its column): a level, a length, a pass rate."""
    larger_is: Literal["harder", "easier"] = "harder"
    """What a larger number means: a level is ``harder``, a pass rate ``easier``."""
    passes: float = Field(default=1.0, gt=0)
    """Passes over the prompts that the way from easy to hard takes; 0.5 goes it with a random half of them."""
    spread: float = Field(default=0.1, ge=0)
    """How far prompts stray from their place, as a share of the way: 0 sorts strictly, 1 and more is nearly random."""


class SuccessOrder(Section):
    """Prompts more often whose recent success rate is near a target: neither solved nor out of reach.

    What a draw gets depends on the steps that were taken before it is admitted, never on what finishes first.
    """

    type: Literal["success"] = "success"
    """Which order."""
    target: float = Field(default=0.5, ge=0, le=1)
    """The success rate that is drawn most often; at 0.5 a reward of 0 or 1 varies most."""
    floor: float = Field(default=0.1, gt=0, le=1)
    """How often a prompt farthest from the target is drawn, as a share of one at it; 1 makes no difference."""
    newest: float = Field(default=0.5, gt=0, le=1)
    """Weight of the newest group in a prompt's average; 1 forgets all before."""
    full_mark: float = 1.0
    """An attempt is a success if its reward reaches this."""
    score: str | None = None
    """Which of several named rewards counts for that; null: the total."""
    first_pass: bool = True
    """Draw every prompt once before any twice; false: one not yet drawn counts as being at the target."""


Order: TypeAlias = Annotated[ShuffledOrder | DifficultyOrder | SuccessOrder, Field(discriminator="type")]


def check_order(order: Order, epochs: int | None) -> None:
    """Raises ValueError for an order that cannot go with ``epochs``."""
    if isinstance(order, SuccessOrder) and epochs is not None:
        raise ValueError(
            f"epochs={epochs} counts passes over the prompts, and order.type=success draws some of them more often "
            "than others. Set steps and leave epochs out, or order.type=shuffle."
        )
