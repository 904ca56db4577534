"""All prompts of a source: reads it, makes and fits every prompt, refuses doubled uids, and counts."""

from collections.abc import Iterator
from dataclasses import dataclass

from stretto.config.prompts import (
    AdditionPrompts,
    DatasetsPrompts,
    GymPrompts,
    JsonlPrompts,
    ParquetPrompts,
    Prompts,
    PythonPrompts,
    Rows,
)
from stretto.data.sources.addition import read_addition
from stretto.data.sources.columns import Columns
from stretto.data.sources.fitting import Fitter
from stretto.data.sources.gym import missing_answers, read_gym
from stretto.data.sources.hf_datasets import read_datasets
from stretto.data.sources.jsonl import read_jsonl
from stretto.data.sources.objects import name_of_objects, read_objects
from stretto.data.sources.parquet import read_parquet
from stretto.data.sources.rows import Draft, Row, Taken
from stretto.data.tokens import Tokenizer
from stretto.errors import DataError
from stretto.types import Prompt

__all__ = ["Intake", "load_prompts", "read_prompts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intake:
    """What was read of a source. ``read`` rows are ``prompts`` and ``skipped``; ``truncated`` of the prompts were cut.
    Skipped is what was too long (``too_long: skip``) or came before (``unique``).

    ``source`` names it for people; ``notes`` are sentences that whoever starts a run should see.
    """

    source: str
    prompts: list[Prompt]
    read: int
    skipped: int = 0
    truncated: int = 0
    notes: tuple[str, ...] = ()


def load_prompts(config: Prompts, tokenizer: Tokenizer, given: object = None) -> list[Prompt]:
    """All prompts of a source, in its order; every uid once. See ``read_prompts``."""
    return read_prompts(config, tokenizer, given).prompts


def read_prompts(config: Prompts, tokenizer: Tokenizer, given: object = None) -> Intake:
    """All prompts of a source, in its order, with what was skipped or cut; every uid once.

    ``given`` is the object passed to ``stretto.train`` when ``config`` is a PythonPrompts without ``use``: an
    iterable, or a function without parameters that returns one. It is read to its end, so an endless one is not
    supported. An empty source, or one with a fault, raises DataError naming the place; a missing package ConfigError.
    """
    source, taken = _name(config), Taken(config.slice)
    if isinstance(config, AdditionPrompts):
        fitter = Fitter(tokenizer, None, "fail", chat=False)
    else:
        fitter = Fitter(tokenizer, config.max_prompt_tokens, config.too_long, chat=config.chat)
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    unique = not isinstance(config, AdditionPrompts) and config.unique
    seen: set[str] = set()
    repeated = 0
    for place, item in _items(config, taken, given):
        if item.uid in places:
            raise DataError(
                f"{place}: the uid {item.uid!r} is that of {places[item.uid]} too, and a uid decides what is held "
                "out. Make the uids unique, or leave them out to number the prompts."
            )
        places[item.uid] = place
        prompt = fitter.fit(place, item)
        if prompt is None:
            continue
        if unique and prompt.text in seen:
            repeated += 1
            continue
        seen.add(prompt.text)
        prompts.append(prompt)
    if not prompts:
        raise DataError(_nothing(config, source, taken, fitter))
    notes = missing_answers(prompts) if isinstance(config, GymPrompts) else ()
    if repeated:
        notes += (f"{repeated} rows repeat the text of an earlier prompt and were left out (prompts.unique).",)
    return Intake(
        source=source,
        prompts=prompts,
        read=len(places),
        skipped=fitter.skipped + repeated,
        truncated=fitter.truncated,
        notes=notes,
    )


def _items(config: Prompts, taken: Taken, given: object) -> Iterator[tuple[str, Draft | Prompt]]:
    """Every item with its place."""
    match config:
        case AdditionPrompts():
            yield from read_addition(config, taken)
        case GymPrompts():
            yield from read_gym(config, taken)
        case JsonlPrompts():
            yield from _drafts(config, read_jsonl(config, taken), plain=True)
        case ParquetPrompts():
            yield from _drafts(config, read_parquet(config, taken))
        case DatasetsPrompts():
            yield from _drafts(config, read_datasets(config, taken))
        case PythonPrompts():
            columns = Columns(config=config)
            for place, item in read_objects(config, taken, given):
                yield place, columns.draft(item) if isinstance(item, Row) else item


def _drafts(config: Rows, rows: Iterator[Row], *, plain: bool = False) -> Iterator[tuple[str, Draft]]:
    columns = Columns(config=config, plain=plain)
    for row in rows:
        yield row.place, columns.draft(row)


def _name(config: Prompts) -> str:
    match config:
        case AdditionPrompts():
            return "prompts.name=addition"
        case GymPrompts():
            return f"reasoning_gym ({', '.join(task.name for task in config.mixture)})"
        case JsonlPrompts() | ParquetPrompts() | DatasetsPrompts():
            path = config.path if isinstance(config.path, str) else ", ".join(config.path)
            return f"{path} (prompts.path)"
        case PythonPrompts():
            return name_of_objects(config)


def _nothing(config: Prompts, source: str, taken: Taken, fitter: Fitter) -> str:
    """Why no prompt is left, and what to do."""
    if fitter.skipped and not isinstance(config, AdditionPrompts):
        return (
            f"all {fitter.skipped} prompts of {source} are longer than prompts.max_prompt_tokens="
            f"{config.max_prompt_tokens} and were skipped (prompts.too_long=skip); the shortest has {fitter.shortest} "
            "tokens. Raise prompts.max_prompt_tokens."
        )
    if taken.text is not None and taken.rows != 0:
        has = "" if taken.rows is None else f", which has {taken.rows}"
        return (
            f"prompts.slice={taken.text} takes none of the rows of {source}{has}. Take another slice, or null for all."
        )
    return f"{source} has no prompts. Give at least one."
