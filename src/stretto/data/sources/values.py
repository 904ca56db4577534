"""Values as JSON: what a prompt keeps is recorded, and sent to the processes of rewards."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from stretto.errors import DataError
from stretto.types import Json

__all__ = ["as_json", "short"]


def as_json(what: str, value: object) -> Json:
    """``value`` as JSON: tuples as lists, numpy's numbers and arrays as plain ones. Anything else is a DataError."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return as_json(what, cast("object", value.tolist()))
    if isinstance(value, float):
        if not np.isfinite(value):
            raise DataError(f"{what} is {value}, which JSON does not have. Use null or a string.")
        return value
    if isinstance(value, Mapping):
        return _json_object(what, cast("Mapping[object, object]", value))
    if isinstance(value, list | tuple):
        return [as_json(what, part) for part in cast("Sequence[object]", value)]
    raise DataError(
        f"{what} is a {type(value).__name__}, and data is JSON (strings, numbers, lists, dicts). "
        "Convert it, leave it out (prompts.data names what is kept), or look it up by prompt.uid in the reward."
    )


def short(value: object) -> str:
    """A value as it is shown in a message."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."


def _json_object(what: str, item: Mapping[object, object]) -> dict[str, Json]:
    row: dict[str, Json] = {}
    for key, value in item.items():
        if not isinstance(key, str):
            raise DataError(f"{what}: the key {key!r} is a {type(key).__name__}. Keys are strings.")
        row[key] = as_json(f"{what}.{key}", value)
    return row
