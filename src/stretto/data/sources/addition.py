"""The built-in source: problems ``a+b=``."""

from collections.abc import Iterator
from itertools import product

from stretto.config.prompts import AdditionPrompts
from stretto.data.sources.rows import Draft, Taken

__all__ = ["read_addition"]


def read_addition(config: AdditionPrompts, taken: Taken) -> Iterator[tuple[str, Draft]]:
    """Every pair of 0..max once, by the first summand, then the second."""
    summands = range(config.max + 1)
    for a, b in taken.of(product(summands, summands)):
        uid = f"{a}+{b}"
        yield uid, Draft(uid=uid, content=f"{uid}=", data={"answer": str(a + b)})
