"""Preference pairs in the columns of a row: two answers to a prompt, as text or as conversations that end in them."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from stretto.data.sources.chat import messages_of
from stretto.data.sources.values import short
from stretto.errors import DataError
from stretto.types import Message

__all__ = ["answer_in", "common_prompt", "is_conversation"]

Content: TypeAlias = str | tuple[Message, ...]


def is_conversation(value: object) -> bool:
    """Whether a value is a list of messages, as far as its form tells."""
    return (
        isinstance(value, list | tuple)
        and len(cast("Sequence[object]", value)) > 0
        and all(isinstance(turn, Mapping) and "role" in turn for turn in cast("Sequence[object]", value))
    )


def common_prompt(place: str, chosen: object, rejected: object) -> tuple[Message, ...]:
    """The messages that two conversations begin with, which differ in their last one only.

    DataError if they differ earlier, or are of other lengths, or have no message before the last.
    """
    one, other = messages_of(place, chosen), messages_of(place, rejected)
    if len(one) < 2 or one[:-1] != other[:-1]:
        raise DataError(
            f"{place}: there is no prompt beside the two conversations, and they are not one prompt with two answers. "
            "Make them differ in their last message only, or give the prompt a column (prompts.prompt)."
        )
    return one[:-1]


def answer_in(place: str, value: object, prompt: Content) -> object:
    """The answer that ``value`` holds: of a list of messages, the text of the last; anything else as it is.

    The messages before it, if there are any, must be the prompt's.
    """
    if not is_conversation(value):
        return value
    *before, last = messages_of(place, value)
    if last.role != "assistant":
        raise DataError(
            f"{place}: the answer {short(value)} does not end with a message of the assistant. End it with one."
        )
    if before and _without_system(tuple(before)) != _without_system(prompt):
        raise DataError(
            f"{place}: the messages before the answer {short(value)} are not those of the prompt. Leave them out "
            "there, or the prompt's column: a prompt is then taken from both answers."
        )
    return last.content


def _without_system(content: Content) -> tuple[Message, ...]:
    """The conversation without the system message, which ``prompts.system`` may have added; text as a user's."""
    messages = (Message(role="user", content=content),) if isinstance(content, str) else content
    return messages[1:] if messages and messages[0].role == "system" else messages
