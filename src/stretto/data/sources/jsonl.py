"""JSON lines: one object a line, in UTF-8; blank lines are passed over. Lines outside the slice are not parsed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from stretto.config.prompts import JsonlPrompts
from stretto.data.sources.files import named_files
from stretto.data.sources.rows import Row, Taken
from stretto.errors import DataError
from stretto.types import Json

__all__ = ["EXAMPLE", "read_jsonl"]

EXAMPLE = '{"prompt": "1+1=", "answer": "2"}'


def read_jsonl(config: JsonlPrompts, taken: Taken) -> Iterator[Row]:
    """The rows of the files, numbered by their lines from 1."""
    for prefix, path, number, raw in taken.of(_lines(config)):
        place = f"{path}, line {number}"
        yield Row(place=place, number=f"{prefix}{number}", columns=_parse(place, raw))


def _lines(config: JsonlPrompts) -> Iterator[tuple[str, Path, int, bytes]]:
    for prefix, path in named_files(config.path, "JSONL"):
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.isspace():
                    yield prefix, path, number, raw


def _parse(place: str, raw: bytes) -> dict[str, Json]:
    """One line as a JSON object. NaN and infinities, which JSON does not have, are refused."""
    try:
        value: object = _DECODER.decode(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: this is not JSON ({error}). Each line is one JSON object in UTF-8.") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: a JSON {type(value).__name__} came where an object belongs, such as {EXAMPLE}.")
    return cast("dict[str, Json]", value)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: with ``json.loads`` every line would make its own."""
