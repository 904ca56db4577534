"""What rewards returned, as scores: what counts as a number and what as a failure.

None, for the whole or for a name, means that it does not apply. Anything else that is no finite number is a failure,
and so is a trajectory to which no score applies: an error is never a number.
"""

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from stretto.environments.rewards.contract import Notes, Part, Rewards, Scores
from stretto.errors import RewardError
from stretto.types import LARGEST_REWARD, Group, Json

__all__ = ["read_number", "read_one", "read_parts", "siblings_of"]


def siblings_of(part: Part, value: object, group: Group) -> list[object]:
    """What a reward that takes all siblings returned, one value each. Raises RewardError if it is no such list."""
    if isinstance(value, np.ndarray):
        value = cast("object", value.tolist())
    size = len(group.trajectories)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RewardError(f"it returned {_short(value)}, a {type(value).__name__}. Return a list of {size}, one each.")
    values = list(cast("Sequence[object]", value))
    if len(values) != size:
        raise RewardError(f"it returned {len(values)} values for {size} trajectories. Return one for each, in order.")
    return values


def read_one(rewards: Rewards, value: object) -> Scores:
    """The scores of one trajectory by a single reward whose notes nobody has."""
    part = rewards.parts[0]
    if type(value) is float and abs(value) <= LARGEST_REWARD:  # by far the most frequent
        return {part.name: value}
    return _finite(rewards, _read(part, value, {}, {}), value)


def read_parts(
    rewards: Rewards, values: Sequence[object], logs: Sequence[Mapping[str, list[float]] | None]
) -> tuple[Scores, Notes]:
    """The scores of one trajectory by every part, and what goes into its info."""
    scores: dict[str, float | None] = {}
    logged: dict[str, list[float]] = {}
    extra: dict[str, Json] = {}
    for part, value, log in zip(rewards.parts, values, logs, strict=True):
        prefix = f"{part.name}/" if rewards.named else ""
        try:
            shown: dict[str, list[float]] = {}
            found = _read(part, value, shown, extra)
        except RewardError as error:
            raise RewardError(f"its part {part.name!r}: {error}") if rewards.named else error from None
        if rewards.named:
            shown.update({name: [score] for name, score in found.items() if name != part.name and score is not None})
            scores[part.name] = _sum(found)
        else:
            scores.update(found)
        for source in (shown, log or {}):
            for name, numbers_ in source.items():
                logged.setdefault(f"{prefix}{name}", []).extend(numbers_)
    notes: dict[str, Json] = {}
    if logged:
        notes["logged"] = cast("Json", logged)
    if extra:
        notes["extra"] = extra
    return _finite(rewards, scores, values if rewards.named else values[0]), notes


def read_number(value: object) -> float | None:
    """A finite number, or None. Raises RewardError for anything else."""
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = cast("object", value.item())
    if not isinstance(value, numbers.Real):
        raise RewardError(
            f"it returned {_short(value)}, a {type(value).__name__}. Return a number, a dict of them, or None."
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RewardError(f"it returned {value!r}. Return a finite number, or None where it does not apply.")
    if abs(number) > LARGEST_REWARD:
        raise RewardError(f"it returned {value!r}, beyond what float32 holds. Return a smaller number.")
    return number


def _read(part: Part, value: object, shown: dict[str, list[float]], extra: dict[str, Json]) -> dict[str, float | None]:
    """The scores in one value. What verl's form returns beside its score goes to ``shown`` and ``extra``."""
    if not isinstance(value, Mapping):
        return {part.name: read_number(value)}
    given = cast("Mapping[object, object]", value)
    names = [name for name in given if isinstance(name, str)]
    if len(names) != len(given):
        wrong = next(name for name in given if not isinstance(name, str))
        raise RewardError(f"it returned a dict with the key {wrong!r}. Keys are names.")
    if part.signature.form == "verl":
        return {part.name: _score_beside(given, names, shown, extra)}
    reserved = sorted({"mean", "min", "max"} & set(names))
    if reserved:
        raise RewardError(f"it returned a dict with the key {reserved[0]!r}, which metrics have. Choose another name.")
    return {name: read_number(given[name]) for name in names}


def _score_beside(
    given: Mapping[object, object], names: Sequence[str], shown: dict[str, list[float]], extra: dict[str, Json]
) -> float | None:
    """verl: ``score`` is the reward; other numbers are shown apart, and anything else is kept with the trajectory."""
    if "score" not in given:
        raise RewardError(f"it returned a dict without 'score' ({', '.join(names) or 'empty'}). Return one with it.")
    for name in names:
        if name == "score":
            continue
        value = given[name]
        if isinstance(value, np.generic):
            value = cast("object", value.item())
        if isinstance(value, numbers.Real) and math.isfinite(value):
            shown[name] = [float(value)]
            continue
        value = cast("object", value)
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RewardError(f"it returned {name}={_short(value)}, which cannot be recorded ({error}).") from error
        extra[name] = cast("Json", value)
    return read_number(given["score"])


def _sum(scores: Scores) -> float | None:
    applies = [score for score in scores.values() if score is not None]
    return math.fsum(applies) if applies else None


def _finite(rewards: Rewards, scores: Scores, value: object) -> Scores:
    """``scores`` that make a reward: one that counts applies, and the sum is no larger than float32 holds."""
    counted = [p.name for p in rewards.parts if p.weight] if rewards.named else list(scores)
    if all(scores.get(name) is None for name in counted):
        some = "for at least one name" if isinstance(value, Mapping) or rewards.named else "on every path through it"
        raise RewardError(f"it returned {_short(cast('object', value))}: no reward applies. Return a number {some}.")
    try:
        finite = abs(rewards.total(scores)) <= LARGEST_REWARD
    except OverflowError:
        finite = False
    if not finite:
        raise RewardError(f"it returned {value!r}, whose sum is beyond what float32 holds. Return smaller numbers.")
    return scores


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
