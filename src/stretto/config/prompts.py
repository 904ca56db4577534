"""Where prompts come from: one section per source, a union on ``type``.

``Rows`` is what all sources of rows with columns share. Owns what can be told from the keys alone; columns are checked
against the data when it is read.
"""

import re
from dataclasses import dataclass, field
from string import Formatter
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from stretto.config.base import Section
from stretto.errors import nearest
from stretto.types import Json

__all__ = [
    "AdditionPrompts",
    "DatasetsPrompts",
    "GymPrompts",
    "GymTask",
    "JsonlPrompts",
    "ParquetPrompts",
    "Prompts",
    "PythonPrompts",
    "Rows",
    "TooLong",
    "slice_of",
]

_LAST_ROW = 2**60

TooLong = Literal["fail", "skip", "truncate"]


def slice_of(text: str) -> slice:
    """The slice that ``start:stop`` or ``start:stop:step`` writes. Raises ValueError with the remedy."""
    parts = text.split(":")
    try:
        bounds = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        bounds = []
    if any(abs(bound) > _LAST_ROW for bound in bounds if bound is not None):
        raise ValueError(f"prompts.slice={text} goes beyond row {_LAST_ROW}. Leave out the end to take all.")
    if len(bounds) not in (2, 3) or (len(bounds) == 3 and bounds[2] is not None and bounds[2] < 1):
        raise ValueError(
            f"prompts.slice={text} is no slice: it must be start:stop or start:stop:step, with a step of 1 or more. "
            'Write one such as "100:200", ":50" or "-10:".'
        )
    return slice(*bounds)


def _check_slice(text: str) -> str:
    slice_of(text)
    return text


def _check_paths(value: object) -> object:
    names = list(cast("list[object]", value)) if isinstance(value, (list, tuple)) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(
            f"prompts.path={value!r} must be a file, a list of files, or a pattern such as data/*.jsonl. Set it so."
        )
    return names if isinstance(value, (list, tuple)) else value


Slice: TypeAlias = Annotated[str, AfterValidator(_check_slice)]
Paths: TypeAlias = Annotated[str | list[str], BeforeValidator(_check_paths)]


class Rows(Section):
    """A source of rows with columns. A column inside another is named with dots: ``reward_model.ground_truth``."""

    prompt: str = "prompt"
    """The column of the prompt: a string, or a list of {role, content} messages."""
    template: str | None = None
    """Text that makes the prompt of columns, such as ``"Question: {question}\\nAnswer:"``; ``{{`` is a brace."""
    answer: str | None = "answer"
    """The column of the reference answer (``data["answer"]``), or null. Rows of verl's layout have it by themselves."""
    answer_pattern: str | None = None
    """A regular expression whose one group is the answer in a longer solution, at its last match: ``#### (.*)``."""
    chosen: str = "chosen"
    """The column of the better of two answers (``data["chosen"]``), where rows have two, for dpo and reward-model:
    text, or a list of messages whose last one it is."""
    rejected: str = "rejected"
    """The column of the worse one."""
    uid: str | None = None
    """The column of the unique id; null numbers the rows."""
    data: dict[str, str] | None = None
    """The columns a reward sees beside ``answer``, ``{name: column}``; null: all but the prompt, by their names."""
    system: str | None = None
    """A system message put before every chat that has none; needs chat messages, or ``chat: true``."""
    chat: bool = False
    """Make a text prompt one message of the user, in the model's chat template; messages stay as they are."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Token budget of a prompt, chat template included."""
    too_long: TooLong = "fail"
    """A prompt beyond the budget: refuse the data, skip the row, or keep its end (of text only); both are counted."""
    slice: Slice | None = None
    """The rows to take, as Python slices them (``"100:200"``, ``":50"``, ``"-10:"``, ``"::2"``); null: all."""
    unique: bool = False
    """Leave out a prompt whose text came before, so that none is both trained on and held out; counted."""
    held_out: float = Field(default=0.2, ge=0, le=1)
    """Share of the prompts, chosen by seed and uid, kept from every phase of training for evaluation;
    1: all, for `stretto eval` only."""

    @model_validator(mode="after")
    def _text_is_cut(self) -> "Rows":
        _refuse_cut_chat(self.too_long, self.chat)
        return self

    @model_validator(mode="after")
    def _one_prompt(self) -> "Rows":
        if self.template is None:
            return self
        if self.prompt != "prompt":
            raise ValueError(
                f"prompts.prompt={self.prompt} and prompts.template both make the prompt. Leave one of them out; a "
                f"template names its columns itself: {{{self.prompt}}}."
            )
        if self.system is not None and not self.chat:
            raise ValueError(
                "prompts.system is a chat message, and prompts.template makes plain text. Set prompts.chat=true, or "
                "write what the system message says into the template."
            )
        return self

    @field_validator("template")
    @classmethod
    def _a_template(cls, text: str | None) -> str | None:
        if text is not None:
            _check_template(text)
        return text

    @field_validator("answer_pattern")
    @classmethod
    def _one_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(
                f"prompts.answer_pattern={pattern} is no regular expression ({error}). Write one such as #### (.*)."
            ) from error
        if groups != 1:
            raise ValueError(
                f"prompts.answer_pattern={pattern} has {groups} groups, and the answer is what its one group matches. "
                "Put the answer into (...), and other brackets into (?:...)."
            )
        return pattern

    @model_validator(mode="after")
    def _one_answer(self) -> "Rows":
        if self.answer_pattern is not None and self.answer is None and not isinstance(self, PythonPrompts):
            raise ValueError(
                "prompts.answer_pattern finds the answer in the column prompts.answer, which is null. "
                "Set prompts.answer to the column of the solution."
            )
        if self.answer is not None and self.data is not None and "answer" in self.data:
            raise ValueError(
                f"prompts.data={{answer: {self.data['answer']}}} and prompts.answer={self.answer} both give "
                "data['answer']. Leave one of them out."
            )
        return self


class AdditionPrompts(Section):
    """Problems ``a+b=`` with every pair of 0..max, written out once each."""

    type: Literal["builtin"] = "builtin"
    """Which source."""
    name: Literal["addition"] = "addition"
    """Which built-in task."""
    max: int = Field(default=99, ge=1, le=999)
    """Largest summand."""
    slice: Slice | None = None
    """The rows to take, as Python slices them (``"100:200"``, ``":50"``, ``"-10:"``, ``"::2"``); null: all."""
    held_out: float = Field(default=0.2, ge=0, le=1)
    """Share of the prompts, chosen by seed and uid, kept from every phase of training for evaluation;
    1: all, for `stretto eval` only."""


class JsonlPrompts(Rows):
    """Files with one JSON object per line."""

    type: Literal["jsonl"] = "jsonl"
    """Which source."""
    path: Paths
    """The file; or several: a list, or a pattern such as ``data/*.jsonl``. ``builtin:gsm-style.jsonl`` is a sample."""


class ParquetPrompts(Rows):
    """Parquet files; verl's layout is read as it is. Needs the extra [data]."""

    type: Literal["parquet"] = "parquet"
    """Which source."""
    path: Paths
    """The file; or several: a list, or a pattern such as ``data/*.parquet``."""


class DatasetsPrompts(Rows):
    """A folder that the library ``datasets`` reads without a network. Needs the extra [data]."""

    type: Literal["datasets"] = "datasets"
    """Which source."""
    path: str
    """The folder: written by ``save_to_disk``, or with files by split, such as ``train.parquet``."""
    split: str | None = None
    """The split to take; null: the only one."""


class PythonPrompts(Rows):
    """Python objects given to ``stretto.train``: strings, dicts or Prompts, or a ``datasets.Dataset``."""

    type: Literal["python"] = "python"
    """Which source."""
    use: str | None = None
    """``module:name`` of an iterable or of a function that returns one; null if an object was passed."""
    answer: str | None = None
    """The key of the reference answer (``data["answer"]``); null: ``answer`` where an item has it."""
    uid: str | None = None
    """The key of the unique id; null: ``uid`` where an item has it, else its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GymTask:
    """One task of a mixture."""

    name: str
    weight: float = 1.0
    settings: dict[str, Json] = field(default_factory=dict[str, Json])


class GymPrompts(Section):
    """Problems that reasoning-gym makes, of one task or a mixture. Needs the extra [tasks]."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    """Which source."""
    task: str | None = None
    """The name of the only task, with its own settings, such as ``chain_sum``."""
    tasks: dict[str, dict[str, Any]] | None = None
    """Tasks by name, with share and settings: ``{chain_sum: {weight: 2, with: {min_terms: 2}}, leg_counting: {}}``."""
    size: int = Field(default=1000, ge=1)
    """How many problems are made, of all tasks together, before ``slice``."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """What the problems are made from; another seed gives other problems."""
    system: str | None = None
    """A system message put before every chat that has none; needs chat messages, or ``chat: true``."""
    chat: bool = False
    """Make a text prompt one message of the user, in the model's chat template; messages stay as they are."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Token budget of a prompt, chat template included."""
    too_long: TooLong = "fail"
    """A prompt beyond the budget: refuse the data, skip the row, or keep its end (of text only); both are counted."""
    slice: Slice | None = None
    """The rows to take, as Python slices them (``"100:200"``, ``":50"``, ``"-10:"``, ``"::2"``); null: all."""
    unique: bool = False
    """Leave out a prompt whose text came before, so that none is both trained on and held out; counted."""
    held_out: float = Field(default=0.2, ge=0, le=1)
    """Share of the prompts, chosen by seed and uid, kept from every phase of training for evaluation;
    1: all, for `stretto eval` only."""

    @model_validator(mode="after")
    def _text_is_cut(self) -> "GymPrompts":
        _refuse_cut_chat(self.too_long, self.chat)
        return self

    @field_validator("tasks", mode="before")
    @classmethod
    def _a_mixture(cls, tasks: object) -> object:
        if tasks is not None:
            _mixture(tasks)
        return tasks

    @model_validator(mode="after")
    def _task_or_tasks(self) -> "GymPrompts":
        if (self.task is None) == (self.tasks is None):
            what = "neither is set" if self.task is None else "both are set"
            raise ValueError(f"prompts.task or prompts.tasks says what is made, and {what}. Set one of them.")
        if self.system is not None and not self.chat:
            raise ValueError(
                "prompts.system is a chat message, and the problems of reasoning_gym are plain text. "
                "Set prompts.chat=true, or leave prompts.system out."
            )
        return self

    @property
    def mixture(self) -> tuple[GymTask, ...]:
        """The tasks, in the order of the recipe."""
        return (GymTask(name=self.task),) if self.task is not None else _mixture(self.tasks)


Prompts: TypeAlias = Annotated[
    AdditionPrompts | JsonlPrompts | ParquetPrompts | DatasetsPrompts | GymPrompts | PythonPrompts,
    Field(discriminator="type"),
]


def _refuse_cut_chat(too_long: TooLong, chat: bool) -> None:
    if too_long == "truncate" and chat:
        raise ValueError(
            "prompts.too_long=truncate cuts the beginning of text, and prompts.chat=true makes chat messages, which a "
            "cut would break. Set prompts.too_long=skip, or chat=false."
        )


def _check_template(text: str) -> None:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(
            f"prompts.template={text!r} is no template ({error}). Name columns as {{question}}, and write a brace that "
            "is text twice: {{ or }}."
        ) from error
    for _, name, form, conversion in parts:
        if name is not None and (not name or form or conversion):
            raise ValueError(
                f"prompts.template={text!r}: a place for a column holds its name and nothing else, such as "
                "{question} or {extra.level}."
            )
    if all(name is None for _, name, _, _ in parts):
        raise ValueError(
            f"prompts.template={text!r} names no column, so that every prompt would be the same. Add one: {{question}}."
        )


def _mixture(value: object) -> tuple[GymTask, ...]:
    """The tasks of a mapping. Raises ValueError with key, value and remedy."""
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f"prompts.tasks={value!r} must be a mapping of task names, such as "
            "{chain_sum: {weight: 1.0, with: {min_terms: 2}}}. For a single task set prompts.task."
        )
    tasks: list[GymTask] = []
    for name, given in cast("dict[object, object]", value).items():
        key = f"prompts.tasks.{name}"
        if given is None:
            given = {}
        if not isinstance(given, dict):
            raise ValueError(f"{key}={given!r} must be a mapping with weight and with. Write {{}} for their defaults.")
        below = cast("dict[str, Any]", given)
        unknown = next((k for k in below if k not in ("weight", "with")), None)
        if unknown is not None:
            raise ValueError(
                f"{key}.{unknown} is not known.{nearest(str(unknown), ['weight', 'with'])} Settings of the task itself "
                f"go under {key}.with."
            )
        weight, settings = below.get("weight", 1.0), below.get("with", {})
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
            raise ValueError(f"{key}.weight={weight!r} must be a number above 0. Leave out a task that is not wanted.")
        if not isinstance(settings, dict):
            raise ValueError(f"{key}.with={settings!r} must be a mapping of the task's settings to values.")
        tasks.append(GymTask(name=str(name), weight=float(weight), settings=cast("dict[str, Json]", settings)))
    return tuple(tasks)
