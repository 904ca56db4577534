"""Python objects as a source: strings, dicts and Prompts, a function that returns them, or a ``datasets.Dataset``."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter, signature
from typing import cast

from stretto.config.prompts import PythonPrompts
from stretto.data.sources.chat import as_chat
from stretto.data.sources.hf_datasets import is_dataset, rows_of
from stretto.data.sources.jsonl import EXAMPLE
from stretto.data.sources.rows import Draft, Row, Taken
from stretto.errors import ConfigError, DataError, StrettoError
from stretto.imports import find_named, is_named, told
from stretto.types import Prompt

__all__ = ["name_of_objects", "read_objects"]

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def name_of_objects(config: PythonPrompts) -> str:
    """The source as people know it."""
    return "the given prompts" if config.use is None else f"prompts.use={config.use}"


def read_objects(config: PythonPrompts, taken: Taken, given: object) -> Iterator[tuple[str, Row | Draft | Prompt]]:
    """Every item with its place: a dict as a row of columns, a string as a draft, a Prompt as it is."""
    name = name_of_objects(config)
    source = given if config.use is None else _import(config.use)
    if source is None:
        raise ConfigError(
            "prompts.type=python without prompts.use needs an object, and none was passed. "
            "Pass prompts=[...] to stretto.train, or set prompts.use=module:name."
        )
    if callable(source) and not isinstance(source, Iterable):
        source = _called(name, cast("Callable[[], object]", source))
    if is_dataset(cast("object", source)):
        yield from ((row.place, row) for row in rows_of(source, name, taken))
        return
    if not isinstance(source, Iterable) or isinstance(source, (str, bytes, Mapping)):
        kind = type(cast("object", source)).__name__
        remedy = 'Take one of its splits: prompts["train"].' if kind == "DatasetDict" else ""
        raise DataError(
            f"{name} is a {kind}, and prompts are an iterable of strings, dicts or Prompts, or a function that returns "
            f"one. {remedy or 'Put a single prompt into a list.'}"
        )
    for index, item in taken.of(enumerate(_each(name, cast("Iterable[object]", source)))):
        place = f"{name}, item {index}"
        yield place, _item(config, place, index, item)


def _called(name: str, function: Callable[[], object]) -> object:
    """What a function of the user returns. DataError for one that needs parameters, or raises."""
    try:
        needed = [
            p.name for p in signature(function).parameters.values() if p.default is p.empty and p.kind not in _REST
        ]
    except (ValueError, TypeError):  # something built in that does not say
        needed = []
    if needed:
        raise DataError(f"{name} is a function that needs {', '.join(needed)}. Give it none, or each a default.")
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _each(name: str, source: Iterable[object]) -> Iterator[object]:
    """The items of the user's iterable, which may be a generator. DataError for what it raises."""
    try:
        yield from source
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> StrettoError:
    """The user's own code may raise anything; what Stretto says is passed on as it is."""
    return error if isinstance(error, StrettoError) else DataError(f"{name} failed ({told(error)}). Mend it there.")


def _item(config: PythonPrompts, place: str, index: int, item: object) -> Row | Draft | Prompt:
    if isinstance(item, str):
        content = as_chat(place, item, chat=config.chat, system=config.system)
        return Draft(uid=str(index), content=content, data={})
    if isinstance(item, Prompt):
        return item
    if not isinstance(item, Mapping):
        raise DataError(
            f"{place} is a {type(item).__name__}. A prompt is a string, a dict such as {EXAMPLE}, or a Prompt."
        )
    columns = cast("Mapping[object, object]", item)
    strange = next((key for key in columns if not isinstance(key, str)), None)
    if strange is not None:
        raise DataError(f"{place}: the key {strange!r} is a {type(strange).__name__}. Keys are strings.")
    return Row(place=place, number=str(index), columns=cast("Mapping[str, object]", columns))


def _import(use: str) -> object:
    """The object named ``module:name``."""
    if not is_named(use):
        raise ConfigError(f"prompts.use={use!r} is not of the form module:name. Write it so, such as my_tasks:train.")
    return find_named(use, f"prompts.use={use}")
