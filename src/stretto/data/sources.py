"""Prompt sources: from a section of the recipe to a list of Prompts, checked before anything starts.

Owns reading and checking. It does not own the order of draws or the split (``order.py``).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from stretto.config.prompts import AdditionPrompts, JsonlPrompts, Prompts, PythonPrompts
from stretto.data.tokens import Tokenizer
from stretto.errors import ConfigError, DataError, nearest
from stretto.imports import import_named
from stretto.types import Ints, Json, Message, Prompt

__all__ = ["load_prompts"]


def load_prompts(config: Prompts, tokenizer: Tokenizer, given: object = None) -> list[Prompt]:
    """All prompts of a source, in its order; every uid once.

    ``given`` is the object passed to ``stretto.train`` when ``config`` is a PythonPrompts without ``use``: an
    iterable, or a function without parameters that returns one. It is read to its end, so an endless one is not
    supported. An empty source, or one with a fault, raises DataError naming the place.
    """
    match config:
        case AdditionPrompts():
            found = _addition(config, tokenizer)
        case JsonlPrompts():
            found = _jsonl(config, tokenizer)
        case PythonPrompts():
            found = _python(config, tokenizer, given)
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    for place, prompt in found:
        if prompt.uid in places:
            raise DataError(
                f"{place}: the uid {prompt.uid!r} is that of {places[prompt.uid]} too, and a uid decides what is held "
                "out. Make the uids unique, or leave them out to number the prompts."
            )
        places[prompt.uid] = place
        prompts.append(prompt)
    if not prompts:
        raise DataError(f"{_name(config)} has no prompts. Give at least one.")
    return prompts


def _name(config: Prompts) -> str:
    match config:
        case AdditionPrompts():
            return "prompts.name=addition"
        case JsonlPrompts():
            return f"the file {config.path} (prompts.path)"
        case PythonPrompts():
            return "the given prompts" if config.use is None else f"prompts.use={config.use}"


# --- one prompt ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Makes checked Prompts; ``place`` is where a prompt came from, for messages."""

    tokenizer: Tokenizer
    budget: int

    def make(self, place: str, uid: str, content: Json, data: Mapping[str, Json]) -> Prompt:
        """A Prompt of text or of chat messages."""
        messages = None if isinstance(content, str) else _messages(place, content)
        text = content if isinstance(content, str) else "\n".join(f"{m.role}: {m.content}" for m in messages or ())
        token_ids = self._encode(place, messages or text)
        self._check_length(place, len(token_ids))
        return Prompt(uid=uid, text=text, token_ids=token_ids, data=data, messages=messages)

    def take(self, place: str, prompt: Prompt) -> Prompt:
        """A given Prompt as it is; one without token ids gets those of its messages, or else of its text."""
        if len(prompt.token_ids) == 0:
            prompt = replace(prompt, token_ids=self._encode(place, prompt.messages or prompt.text))
        self._check_length(place, len(prompt.token_ids))
        return prompt

    def _encode(self, place: str, content: str | Sequence[Message]) -> Ints:
        try:
            return self.tokenizer.encode_prompt(content)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error

    def _check_length(self, place: str, num_tokens: int) -> None:
        if num_tokens == 0:
            raise DataError(f"{place}: the prompt has no tokens. Give it some text.")
        if num_tokens > self.budget:
            raise DataError(
                f"{place}: the prompt has {num_tokens} tokens and prompts.max_prompt_tokens is {self.budget}. "
                "Shorten it, remove it, or raise prompts.max_prompt_tokens."
            )


def _uid(place: str, value: Json) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{place}: the uid is a {type(value).__name__}. A uid is a string or an integer.")
    return str(value)


def _messages(place: str, content: Json) -> tuple[Message, ...]:
    """Chat messages from a non-empty list of objects with ``role`` and ``content``, both strings, and nothing else."""
    if not isinstance(content, list) or not content:
        raise DataError(
            f"{place}: the prompt is {_short(content)}. A prompt is a string or a list of messages, such as "
            '[{"role": "user", "content": "1+1="}].'
        )
    messages: list[Message] = []
    for turn in content:
        if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
            raise DataError(f"{place}: a message is {_short(turn)}. It has role and content, and nothing else.")
        role, said = turn["role"], turn["content"]
        if not isinstance(role, str) or not isinstance(said, str):
            raise DataError(f"{place}: a message is {_short(turn)}. Its role and content are strings.")
        messages.append(Message(role=role, content=said))
    return tuple(messages)


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- addition ------------------------------------------------------------------------------------------------------


def _addition(config: AdditionPrompts, tokenizer: Tokenizer) -> Iterator[tuple[str, Prompt]]:
    for a in range(config.max + 1):
        for b in range(config.max + 1):
            uid, text = f"{a}+{b}", f"{a}+{b}="
            data: dict[str, Json] = {"answer": str(a + b)}
            yield uid, Prompt(uid=uid, text=text, token_ids=tokenizer.encode_prompt(text), data=data)


# --- JSONL ---------------------------------------------------------------------------------------------------------


def _jsonl(config: JsonlPrompts, tokenizer: Tokenizer) -> Iterator[tuple[str, Prompt]]:
    path = Path(config.path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else f"does not exist (looked in {Path.cwd()})"
        raise DataError(f"the prompt file {config.path} {what}. Set prompts.path to a JSONL file.")
    maker = _Maker(tokenizer=tokenizer, budget=config.max_prompt_tokens)
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                place = f"{config.path}, line {number}"
                yield place, _jsonl_prompt(config, maker, place, number, _parse(place, raw))


def _parse(place: str, raw: bytes) -> dict[str, Json]:
    """One line as a JSON object. NaN and infinities, which JSON does not have, are refused."""
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: this is not JSON ({error}). Each line is one JSON object in UTF-8.") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: a JSON {type(value).__name__} came where an object belongs, such as {_EXAMPLE}.")
    return cast("dict[str, Json]", value)


_EXAMPLE = '{"prompt": "1+1=", "answer": "2"}'


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _jsonl_prompt(config: JsonlPrompts, maker: _Maker, place: str, number: int, row: dict[str, Json]) -> Prompt:
    """The prompt of one line. ``data`` is the line without its prompt, the answer under ``answer``."""
    content = _take(place, row, config.prompt, "prompts.prompt")
    data = {key: value for key, value in row.items() if key not in (config.prompt, config.answer)}
    if config.answer is not None:
        data["answer"] = _take(place, row, config.answer, "prompts.answer")
    uid = str(number) if config.uid is None else _uid(place, _take(place, row, config.uid, "prompts.uid"))
    return maker.make(place, uid, content, data)


def _take(place: str, row: Mapping[str, Json], key: str, setting: str) -> Json:
    if key not in row:
        optional = "" if setting == "prompts.prompt" else f", or {setting}=null"
        raise DataError(f"{place}: the key {key!r} ({setting}) is missing.{nearest(key, row)} Set {setting}{optional}.")
    return row[key]


# --- Python objects ------------------------------------------------------------------------------------------------


def _python(config: PythonPrompts, tokenizer: Tokenizer, given: object) -> Iterator[tuple[str, Prompt]]:
    name = _name(config)
    source = given if config.use is None else _import(config.use)
    if source is None:
        raise ConfigError(
            "prompts.type=python without prompts.use needs an object, and none was passed. "
            "Pass prompts=[...] to stretto.train, or set prompts.use=module:name."
        )
    if callable(source) and not isinstance(source, Iterable):
        source = cast("Callable[[], object]", source)()
    if not isinstance(source, Iterable) or isinstance(source, (str, bytes, Mapping)):
        raise DataError(
            f"{name} is a {type(cast('object', source)).__name__}, and prompts are an iterable of strings, dicts or "
            "Prompts, or a function that returns one. Put a single prompt into a list."
        )
    maker = _Maker(tokenizer=tokenizer, budget=config.max_prompt_tokens)
    for index, item in enumerate(cast("Iterable[object]", source)):
        place = f"{name}, item {index}"
        yield place, _python_prompt(maker, place, index, item)


def _python_prompt(maker: _Maker, place: str, index: int, item: object) -> Prompt:
    if isinstance(item, str):
        return maker.make(place, str(index), item, {})
    if isinstance(item, Prompt):
        return maker.take(place, item)
    if not isinstance(item, Mapping):
        raise DataError(
            f"{place} is a {type(item).__name__}. A prompt is a string, a dict such as {_EXAMPLE}, or a Prompt."
        )
    row = _json_object(place, cast("Mapping[object, object]", item))
    if "prompt" not in row:
        raise DataError(f"{place}: the key 'prompt' is missing.{nearest('prompt', row)} Add it.")
    uid = _uid(place, row["uid"]) if "uid" in row else str(index)
    data = {key: value for key, value in row.items() if key not in ("prompt", "uid")}
    return maker.make(place, uid, row["prompt"], data)


def _json_object(place: str, item: Mapping[object, object]) -> dict[str, Json]:
    row: dict[str, Json] = {}
    for key, value in item.items():
        if not isinstance(key, str):
            raise DataError(f"{place}: the key {key!r} is a {type(key).__name__}. Keys are strings.")
        row[key] = _json(f"{place}: the value of {key!r}", value)
    return row


def _json(what: str, value: object) -> Json:
    """``value`` as JSON (numpy numbers as plain ones), because prompts are recorded and sent to reward processes."""
    if isinstance(value, np.generic):
        value = cast("object", value.item())
    if isinstance(value, float) and not np.isfinite(value):
        raise DataError(f"{what} is {value}, which JSON does not have. Use null or a string.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return _json_object(what, cast("Mapping[object, object]", value))
    if isinstance(value, list | tuple):
        return [_json(what, part) for part in cast("Sequence[object]", value)]
    raise DataError(
        f"{what} is a {type(value).__name__}, and data is JSON (strings, numbers, lists, dicts). "
        "Convert it, or keep it in the reward and look it up by prompt.uid."
    )


def _import(use: str) -> object:
    """The object named ``module:name``."""
    module_name, colon, name = use.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"prompts.use={use!r} is not of the form module:name. Write it so, such as my_tasks:train.")
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise ConfigError(
            f"prompts.use={use}: the module {module_name} cannot be imported ({error}). "
            "Check the name, and that its folder is on PYTHONPATH."
        ) from error
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"prompts.use={use}: the module {module_name} has no {name!r}.{nearest(name, public)}")
    return getattr(module, name)
