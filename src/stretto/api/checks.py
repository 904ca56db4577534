"""What a loop of one's own may give to a session: checked where it comes in, so that no library below says it oddly."""

import json
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import cast

import numpy as np

from stretto.data.sources.chat import messages_of
from stretto.data.tokens import Tokenizer
from stretto.errors import ConfigError, DataError, nearest
from stretto.types import Group, Json, Message, Prompt

__all__ = ["check_choice", "check_count", "check_groups", "check_prompts", "check_rate", "prompt_of"]


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Raises ConfigError for what is no whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number, {least} or more. Give one.")


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Raises ConfigError for a word that is none of ``known``."""
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not known.{nearest(str(value), known)}")


def check_rate(lr: float) -> float:
    """A learning rate: a NaN would go into every weight. Raises ConfigError."""
    if (
        isinstance(cast("object", lr), bool)
        or not isinstance(cast("object", lr), numbers.Real)
        or not 0 <= lr < math.inf
    ):
        raise ConfigError(f"lr={lr!r} must be a finite number, 0 or more. Give one, or leave it out for the recipe's.")
    return float(lr)


def check_prompts(prompts: object) -> list[Prompt]:
    """The prompts of a rollout. Raises ConfigError for what is none, DataError for odd token ids."""
    if not isinstance(prompts, Iterable) or isinstance(prompts, str | bytes | Mapping):
        raise _no_prompt(cast("object", prompts))
    checked = list(cast("Iterable[object]", prompts))
    for prompt in checked:
        if not isinstance(prompt, Prompt):
            raise _no_prompt(prompt)
        ids: object = prompt.token_ids
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            raise DataError(
                f"the prompt {prompt.uid!r} has token_ids={ids!r}, and they are a numpy array of one or more whole "
                "numbers. session.prompt(text) makes them by the model's tokenizer."
            )
    return cast("list[Prompt]", checked)


def _no_prompt(given: object) -> ConfigError:
    return ConfigError(
        f"rollout was given a {type(given).__name__} ({str(given)[:40]!r}) where a Prompt belongs. Take one of "
        "prompts(8), or make one of text with prompt(...)."
    )


def check_groups(groups: object) -> tuple[Group, ...]:
    """Groups by draw, each once. Raises ConfigError for none, DataError for what is no group or comes twice."""
    if not isinstance(groups, Iterable):
        raise DataError(
            f"groups are a list of what rollout returned, and a {type(groups).__name__} came. Give [group]."
        )
    checked = list(cast("Iterable[object]", groups))
    strange = next((group for group in checked if not isinstance(group, Group)), None)
    if strange is not None:
        raise DataError(f"groups are what rollout returned, and a {type(strange).__name__} came. Give those.")
    rows = sorted(cast("list[Group]", checked), key=lambda group: group.draw)
    if not rows:
        raise ConfigError("there is nothing to train on: no group was given. Give what rollout returned.")
    for one, other in pairwise(rows):
        if one.draw == other.draw:
            raise DataError(
                f"the group of draw {one.draw} came twice, and a group is trained on once in a step. Give each once."
            )
    return tuple(rows)


def prompt_of(tokenizer: Tokenizer, content: object, uid: str | None, data: Mapping[str, object]) -> Prompt:
    """A prompt of text or chat messages (Messages, or dicts of role and content). Raises DataError for others."""
    try:
        json.dumps(data, allow_nan=False)  # what is no JSON cannot be sent to a reward process
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"the prompt {str(content)[:40]!r} was given data that is no JSON ({error}), and data is recorded and sent "
            "to reward processes. Give strings, finite numbers, lists and dicts."
        ) from error
    if uid is not None and not isinstance(cast("object", uid), str):
        raise DataError(f"uid={uid!r} must be a string. Write str({uid!r}).")
    messages = None
    if not isinstance(content, str):
        turns = cast("Sequence[object]", content) if isinstance(content, list | tuple) else content
        plain = [_plain(turn) for turn in turns] if isinstance(turns, list | tuple) else turns
        messages = messages_of("session.prompt", plain)
    text = content if messages is None else "\n".join(f"{m.role}: {m.content}" for m in messages)
    assert isinstance(text, str)
    token_ids = tokenizer.encode_prompt(text if messages is None else messages)
    kept = cast("Mapping[str, Json]", dict(data))
    return Prompt(uid=text if uid is None else uid, text=text, token_ids=token_ids, messages=messages, data=kept)


def _plain(turn: object) -> object:
    return {"role": turn.role, "content": turn.content} if isinstance(turn, Message) else turn
