"""Chat messages from what data files hold, and text as a chat. Rendering them is the tokenizer's."""

from collections.abc import Mapping, Sequence
from typing import cast

from stretto.data.sources.values import short
from stretto.errors import DataError
from stretto.types import Message

__all__ = ["as_chat", "messages_of"]


def messages_of(place: str, content: object) -> tuple[Message, ...]:
    """Messages from a non-empty list of objects with ``role`` and ``content``; what else they hold must be null.

    A content that is a list of parts of type text, as OpenAI writes it, is joined. Other parts are refused.
    """
    if not isinstance(content, (list, tuple)) or not content:
        raise DataError(
            f"{place}: the prompt is {short(cast('object', content))}. A prompt is a string or a list of messages, "
            'such as [{"role": "user", "content": "1+1="}].'
        )
    return tuple(_message(place, turn) for turn in cast("Sequence[object]", content))


def as_chat(
    place: str, content: str | tuple[Message, ...], *, chat: bool, system: str | None
) -> str | tuple[Message, ...]:
    """``content`` under ``prompts.chat`` and ``prompts.system``. A chat that has a system message keeps its own."""
    if isinstance(content, str) and chat:
        content = (Message(role="user", content=content),)
    if system is None:
        return content
    if isinstance(content, str):
        raise DataError(
            f"{place}: the prompt is text, and prompts.system is a chat message. Set prompts.chat=true, or leave "
            "prompts.system out."
        )
    return content if content[0].role == "system" else (Message(role="system", content=system), *content)


def _message(place: str, turn: object) -> Message:
    given = _mapping(turn)
    # Columnar files give every message every field, null where it has none.
    if {key for key in given if given[key] is not None or key in ("role", "content")} != {"role", "content"}:
        raise DataError(f"{place}: a message is {short(turn)}. It has role and content, and nothing else.")
    role, said = given["role"], given["content"]
    if isinstance(said, (list, tuple)):
        said = "".join(_text_of(place, part) for part in cast("Sequence[object]", said))
    if not isinstance(role, str) or not isinstance(said, str):
        raise DataError(f"{place}: a message is {short(turn)}. Its role and content are strings.")
    return Message(role=role, content=said)


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _text_of(place: str, part: object) -> str:
    given = _mapping(part)
    text = given.get("text")
    if given.get("type") != "text" or not isinstance(text, str):
        raise DataError(
            f'{place}: a part of a message is {short(part)}. Only text is read, as {{"type": "text", "text": "..."}}; '
            "images and other media are not. Leave such rows out."
        )
    return text
