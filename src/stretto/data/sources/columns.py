"""From a row's columns to a draft: which column is the prompt, the answer, the uid, and what a reward sees.

Owns the column keys of ``prompts``. It does not read files, and knows no tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import cast

from stretto.config.prompts import PythonPrompts, Rows
from stretto.data.sources.chat import as_chat, messages_of
from stretto.data.sources.preferences import answer_in, common_prompt, is_conversation
from stretto.data.sources.rows import Draft, Row
from stretto.data.sources.values import as_json, short
from stretto.errors import DataError, nearest
from stretto.types import Json, Message

__all__ = ["Columns", "wanted_columns"]

VERL = "reward_model.ground_truth"
"""Where verl's layout (data_source, prompt, ability, reward_model, extra_info) keeps the reference answer."""


def wanted_columns(config: Rows) -> list[str] | None:
    """The paths of all columns that can be read, for sources that can leave others out; None: every column."""
    if config.data is None:
        return None
    fixed = [config.uid, config.answer, "data_source" if config.answer == "answer" else None]
    prompt = [config.prompt] if config.template is None else [name for _, name in _parts(config.template) if name]
    verl = [VERL] if config.answer == "answer" else []
    pair = [config.chosen, config.rejected]
    return [name for name in (*prompt, *fixed, *verl, *pair, *config.data.values()) if name is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Makes drafts as ``config`` says. ``plain``: the columns are JSON already, as those of a JSONL file are."""

    config: Rows
    plain: bool = False
    pattern: re.Pattern[str] | None = field(init=False)
    template: list[tuple[str, str | None]] | None = field(init=False)

    def __post_init__(self) -> None:
        c = self.config
        object.__setattr__(self, "pattern", re.compile(c.answer_pattern) if c.answer_pattern is not None else None)
        object.__setattr__(self, "template", _parts(c.template) if c.template is not None else None)

    def draft(self, row: Row) -> Draft:
        """The draft of one row. A column that is missing, or holds what cannot be used, is a DataError with place."""
        uid_column = self._uid_column(row)
        uid = row.number if uid_column is None else _uid(row.place, _take(row, uid_column, "prompts.uid"))
        content = self._content(row)
        return Draft(uid=uid, content=content, data={**self._data(row), **self._pair(row, content)})

    def _content(self, row: Row) -> str | tuple[Message, ...]:
        c = self.config
        if self.template is None and c.prompt == "prompt" and "prompt" not in row.columns:
            two = list((self._answers(row) or {}).values())
            if two and all(is_conversation(value) for value in two):
                return as_chat(row.place, common_prompt(row.place, *two), chat=c.chat, system=c.system)
        content = _take(row, c.prompt, "prompts.prompt") if self.template is None else self._fill(row, self.template)
        said = content if isinstance(content, str) else messages_of(row.place, content)
        return as_chat(row.place, said, chat=c.chat, system=c.system)

    def _fill(self, row: Row, template: list[tuple[str, str | None]]) -> str:
        text: list[str] = []
        for literal, name in template:
            text.append(literal)
            if name is None:
                continue
            value = _take(row, name, "prompts.template")
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise DataError(
                    f"{row.place}: the column {name!r} (prompts.template) is {short(value)}. A template takes text and "
                    "numbers. Name another column, or give those rows a value."
                )
            text.append(str(value))
        return "".join(text)

    def _data(self, row: Row) -> dict[str, Json]:
        c, column = self.config, self._answer_column(row)
        data: dict[str, Json] = {}
        if c.data is not None:
            for name, path in c.data.items():
                data[name] = self._json(row, path, _take(row, path, f"prompts.data.{name}"))
        else:
            # The answer's column stays under its own name too: that is the name whoever made the file knows.
            left_out = {c.prompt if self.template is None else None, self._numbering(row)}
            for name, value in row.columns.items():
                if name not in left_out:
                    data[name] = self._json(row, name, value)
        if column is not None:
            answer = self._json(row, column, _take(row, column, "prompts.answer"))
            data["answer"] = answer if self.pattern is None else self._found(row, self.pattern, answer)
        return data

    def _pair(self, row: Row, content: str | tuple[Message, ...]) -> dict[str, Json]:
        """The two answers of a preference, if the row has them."""
        pair: dict[str, Json] = {}
        for name, value in (self._answers(row) or {}).items():
            if self.config.data is None or name not in self.config.data:
                answer = answer_in(f"{row.place}, prompts.{name}", value, content)
                pair[name] = self._json(row, name, answer)
        return pair

    def _answers(self, row: Row) -> Mapping[str, object] | None:
        """The columns ``chosen`` and ``rejected``; None without both, unless one was named: then both must be there."""
        paths = {"chosen": self.config.chosen, "rejected": self.config.rejected}
        if all(name == path for name, path in paths.items()) and not all(path in row.columns for path in paths):
            return None
        return {name: _take(row, path, f"prompts.{name}") for name, path in paths.items()}

    def _json(self, row: Row, name: str, value: object) -> Json:
        if self.plain:
            return cast("Json", value)
        return as_json(f"{row.place}: the value of {name!r}", value)

    def _found(self, row: Row, pattern: re.Pattern[str], answer: Json) -> str:
        """The answer in a solution: what the pattern's group has at its last match, without space around it."""
        matches = list(pattern.finditer(answer)) if isinstance(answer, str) else []
        found = (matches[-1].group(1) or "").strip() if matches else ""
        if not found:
            raise DataError(
                f"{row.place}: prompts.answer_pattern={pattern.pattern} finds no answer in {short(answer)}. Mend the "
                "row or the pattern, or leave the row out."
            )
        return found

    def _answer_column(self, row: Row) -> str | None:
        """The column of the answer. Objects and pairs need none, and rows of verl's layout have it elsewhere."""
        column = self.config.answer
        optional = isinstance(self.config, PythonPrompts) and column is None
        if column != "answer" and not optional:
            return column
        if "answer" in row.columns:
            return "answer"
        model = row.columns.get("reward_model")
        if "data_source" in row.columns and isinstance(model, Mapping) and "ground_truth" in model:
            return VERL
        return column if self._answers(row) is None else None

    def _uid_column(self, row: Row) -> str | None:
        return self.config.uid if self.config.uid is not None else self._numbering(row)

    def _numbering(self, row: Row) -> str | None:
        """The key ``uid`` of a Python item that has one: it is no part of ``data``."""
        numbered = isinstance(self.config, PythonPrompts) and self.config.uid is None and "uid" in row.columns
        return "uid" if numbered else None


def _parts(template: str) -> list[tuple[str, str | None]]:
    return [(literal, name) for literal, name, _, _ in Formatter().parse(template)]


def _uid(place: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{place}: the uid is a {type(value).__name__}. A uid is a string or an integer.")
    return str(value)


def _take(row: Row, path: str, setting: str) -> object:
    """The value of a column, or at a dotted path inside one."""
    if path in row.columns:
        return row.columns[path]
    value: object = row.columns
    walked: list[str] = []
    for part in path.split("."):
        below = _mapping(value)
        if below is None or part not in below:
            raise DataError(f"{row.place}: {_missing(path, setting, walked, below)}{_remedy(setting)}")
        walked.append(part)
        value = below[part]
    return value


def _mapping(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else None


def _missing(path: str, setting: str, walked: list[str], below: Mapping[str, object] | None) -> str:
    above, part = ".".join(walked), path.split(".")[len(walked)]
    if below is None:
        return f"{setting}={path} looks inside {above!r}, which has no keys here."
    asked, inside = (f"{setting}={path}", f" inside {above!r}") if walked else (setting, "")
    return f"the key {part!r} ({asked}) is missing{inside}.{nearest(part, below)}"


def _remedy(setting: str) -> str:
    if setting == "prompts.template":
        return " Name columns that every row has."
    optional = ", or prompts.answer=null" if setting == "prompts.answer" else ""
    return f" Set {setting}{optional}."
