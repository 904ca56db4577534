"""Where a session stands, on disk beside its weights, and of which session it is.

Owns ``session.json``; weights and optimizers are the backend's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from stretto.errors import StoreError
from stretto.runtime.build import Job
from stretto.types import Json

__all__ = ["Place", "empty_folder", "of_session", "read_place", "write_place"]

STATE = "session.json"


@dataclass(frozen=True, slots=True)
class Place:
    """The next draw and prompt, the version that was published last, and what nodes keep from step to step."""

    next_draw: int
    next_prompt: int
    version: int
    memory: Mapping[str, Json]


def of_session(job: Job) -> Mapping[str, object]:
    """What another session must have in common to go on to the same bits, by the names of a recipe's keys."""
    recipe = job.recipe
    return {
        "seed": recipe.seed,
        "model": recipe.model.model_dump(mode="json"),
        "algorithm.type": recipe.algorithm.type,
        "order": recipe.order.model_dump(mode="json"),
        "the prompts": job.data_hash,
    }


def empty_folder(folder: str | Path) -> Path:
    """The folder, made if it is not there. Raises StoreError if anything is in it, or it cannot be made."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        full = any(path.iterdir())
    except OSError as error:
        raise StoreError(f"the folder {path} cannot be used ({error.strerror}). Give a new one.") from error
    if full:
        raise StoreError(f"the folder {path} is not empty, and a session overwrites nothing. Give a new one.")
    return path


def write_place(path: Path, place: Place, of: Mapping[str, object]) -> None:
    """Write it last: a folder without it holds no session."""
    (path / STATE).write_text(json.dumps({**asdict(place), "of": of}), encoding="utf-8")


def read_place(path: Path, of: Mapping[str, object]) -> Place:
    """What ``write_place`` wrote. Raises StoreError if nothing did, or a session of another recipe."""
    file = path / STATE
    if not file.is_file():
        raise StoreError(f"the folder {path} has no {STATE}: no session was saved there. Give one that save wrote.")
    try:
        at = cast("dict[str, Any]", json.loads(file.read_text(encoding="utf-8")))
        place = Place(at["next_draw"], at["next_prompt"], at["version"], at["memory"])
        before = cast("dict[str, object]", at["of"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} is damaged ({type(error).__name__}: {error}). Take another folder.") from error
    other = [key for key in of if before.get(key) != of[key]]
    if other:
        raise StoreError(
            f"the session saved in {path} has another {', '.join(other)}, and would not go on to the same bits. Open "
            "one with the same, or begin a new one with model= and what export wrote."
        )
    return place
