"""Values that change with the step: a number, or a mapping from steps to the values that hold from then on.

Steps are those of the main phase, from 0. Owns the type and its arithmetic; fields keep their own bounds, which hold
for every value.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_serializer
from pydantic_core import PydanticCustomError

__all__ = ["ByStep", "Rate", "Whole", "at_step", "most", "scheduled", "told", "value_at", "whole_at"]


class ByStep(BaseModel):
    """Values by the step from which they hold. ``between`` two of them: the earlier one, or a straight line.

    A bound is kept (``value >= 0``) if every value keeps it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: tuple[tuple[int, int | float], ...]
    between: Literal["hold", "linear"] = "hold"

    @property
    def values(self) -> tuple[int | float, ...]:
        """Every value that is written."""
        return tuple(value for _, value in self.at)

    def __ge__(self, bound: float) -> bool:
        return all(value >= bound for value in self.values)

    def __gt__(self, bound: float) -> bool:
        return all(value > bound for value in self.values)

    def __le__(self, bound: float) -> bool:
        return all(value <= bound for value in self.values)

    def __lt__(self, bound: float) -> bool:
        return all(value < bound for value in self.values)

    def __str__(self) -> str:
        values = ", ".join(f"{step}: {value:g}" for step, value in self.at)
        return f"{{at: {{{values}}}, between: linear}}" if self.between == "linear" else f"{{{values}}}"

    @model_serializer
    def tree(self) -> dict[str, Any]:
        """The mapping that makes it again, as JSON has it: with steps as text."""
        at = {str(step): value for step, value in self.at}
        return {"at": at, "between": self.between} if self.between == "linear" else at


def value_at(value: float | ByStep, step: int) -> float:
    """The value that holds at ``step`` (from 0); after the last step that is written its value stays."""
    if not isinstance(value, ByStep):
        return value
    index = max(i for i, (start, _) in enumerate(value.at) if start <= step)
    start, here = value.at[index]
    if value.between == "hold" or index + 1 == len(value.at):
        return here
    end, there = value.at[index + 1]
    return here + (there - here) * (step - start) / (end - start)


def whole_at(value: int | ByStep, step: int) -> int:
    """The same of a whole number."""
    return int(value_at(value, step))


def most(value: float | ByStep) -> float:
    """The largest value that there ever is."""
    return max(value.values) if isinstance(value, ByStep) else value


def at_step(setting: object, step: int) -> object:
    """A setting of a node, or a section of settings, with every value by step replaced by that of ``step``."""
    if isinstance(setting, ByStep):
        return value_at(setting, step)
    if not isinstance(setting, BaseModel):
        return setting
    fields = {name: getattr(setting, name) for name in type(setting).model_fields}
    resolved = {name: at_step(value, step) for name, value in fields.items()}
    changed = {name: value for name, value in resolved.items() if value is not fields[name]}
    return setting.model_copy(update=changed) if changed else setting


def scheduled(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, ByStep]]:
    """Every value by step below a section, with its dotted key."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, ByStep):
            yield f"{prefix}{name}", value
        elif isinstance(value, BaseModel):
            yield from scheduled(value, f"{prefix}{name}.")


def told(value: ByStep) -> str:
    """A schedule in words: ``1 from step 0, 0.8 from step 100``."""
    if value.between == "linear":
        return ", ".join(f"{number:g} at step {step}" for step, number in value.at) + ", on a straight line between"
    return ", ".join(f"{number:g} from step {step}" for step, number in value.at)


def _read(value: object) -> object:
    return _by_step(cast("Mapping[object, object]", value), whole=False) if isinstance(value, Mapping) else value


def _read_whole(value: object) -> object:
    return _by_step(cast("Mapping[object, object]", value), whole=True) if isinstance(value, Mapping) else value


def _by_step(given: Mapping[object, object], *, whole: bool) -> ByStep:
    at, between = given, "hold"
    if "at" in given or "between" in given:
        inside, between = given.get("at"), given.get("between", "hold")
        if set(given) - {"at", "between"} or not isinstance(inside, Mapping) or between not in ("hold", "linear"):
            raise _refused("write {at: {0: 1.0, 100: 0.8}, between: linear}, or hold")
        at = cast("Mapping[object, object]", inside)
    if whole and between == "linear":
        raise _refused("it is a whole number, and a straight line is not. Leave between out")
    values = sorted((_step(step), _number(number, whole=whole)) for step, number in at.items())
    steps = [step for step, _ in values]
    if not steps or steps[0] != 0:
        raise _refused("no value holds from step 0. Give one for step 0")
    if len(set(steps)) < len(steps):
        raise _refused("a step is written twice. Keep one")
    return ByStep(at=tuple(values), between="linear" if between == "linear" else "hold")


def _step(step: object) -> int:
    if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
        return step
    if isinstance(step, str) and step.isascii() and step.isdigit():
        return int(step)
    raise _refused(f"{str(step)!r} is no step. Steps are whole numbers from 0")


def _number(value: object, *, whole: bool) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == float("inf") or value != value:
        raise _refused(f"{str(value)!r} is no number. Give one for every step")
    if whole and value != int(value):
        raise _refused(f"{value!r} is no whole number. Give one for every step")
    return int(value) if whole else float(value)


def _refused(why: str) -> PydanticCustomError:
    return PydanticCustomError("by_step", "{why}", {"why": why})


Rate: TypeAlias = Annotated[float | ByStep, BeforeValidator(_read)]
"""A number, or numbers by step."""
Whole: TypeAlias = Annotated[int | ByStep, BeforeValidator(_read_whole)]
"""A whole number, or whole numbers by step, which hold until the next."""
