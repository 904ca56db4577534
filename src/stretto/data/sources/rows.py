"""What sources hand on: rows, drafts of prompts, and which rows of a source are taken. Reads nothing itself."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from stretto.config.prompts import slice_of
from stretto.types import Json, Message

__all__ = ["Draft", "Row", "Taken"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a source. ``place`` is for messages; ``number`` is its uid where no column gives one."""

    place: str
    number: str
    columns: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A prompt that has no tokens yet: text or chat messages, and what judges it."""

    uid: str
    content: str | tuple[Message, ...]
    data: Mapping[str, Json]


class Taken:
    """Which rows ``prompts.slice`` takes. ``rows`` is how many there were, once they were all counted; else None."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.rows: int | None = None
        self._slice = slice(None) if text is None else slice_of(text)

    def of(self, rows: Iterable[T]) -> Iterator[T]:
        """The rows that are taken. Those before are read past, those after are not read."""
        bounds = (self._slice.start, self._slice.stop)
        if any(bound is not None and bound < 0 for bound in bounds):
            return iter(list(self._counted(rows))[self._slice])
        return islice(self._counted(rows), self._slice.start, self._slice.stop, self._slice.step)

    def among(self, rows: int) -> range:
        """The numbers of the rows that are taken of a source that knows how many it has."""
        self.rows = rows
        return range(rows)[self._slice]

    def _counted(self, rows: Iterable[T]) -> Iterator[T]:
        count = 0
        for row in rows:
            count += 1
            yield row
        self.rows = count
