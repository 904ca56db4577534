"""How often something is done: every so many steps, minutes or epochs."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

__all__ = ["Every", "Interval", "Unit", "every"]

_TEXT = re.compile(r"(\d+(?:\.\d+)?) *(step|minute|epoch)s?")


class Unit(StrEnum):
    """What is counted."""

    STEP = "step"
    MINUTE = "minute"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """``count`` of a unit; whole and at least 1 for steps."""

    count: float
    unit: Unit


def every(interval: int | str) -> Every:
    """What an interval says. ValueError if it says nothing."""
    found = Every(count=interval, unit=Unit.STEP) if isinstance(interval, int) else _read(interval)
    if found.count <= 0 or (found.unit is Unit.STEP and found.count % 1):
        raise ValueError(f"{interval!r} is no interval: steps are whole numbers from 1, minutes and epochs above 0.")
    return found


def _read(text: str) -> Every:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no interval, such as '10 minutes' or '0.5 epochs'.")
    return Every(count=float(match[1]), unit=Unit(match[2]))


def _checked(interval: int | str) -> int | str:
    try:
        every(interval)
    except ValueError as error:
        raise PydanticCustomError("interval", "no interval") from error
    return interval


Interval: TypeAlias = Annotated[int | str, AfterValidator(_checked)]
"""A number of steps, or a text such as ``10 minutes`` or ``0.5 epochs``."""
