"""Conversations in one row of tokens: what the policy wrote stays as sampled, and what others say is put behind it.

Owns how a row goes on after the policy's turn and what ends such a turn. It does not own the rendering of messages
(``templates.py``), nor who speaks next: that is an environment's.

A row is the prompt's ids, then by turns what the policy wrote (mask 1) and what it read (mask 0)::

    <|im_start|>user\\n2+2?<|im_end|>\\n<|im_start|>assistant\\n | 5<|im_end|> | \\n<|im_start|>user\\nNo.<|im_end|>...
    0 (encode_prompt)                                           | 1          | 0 (continue_chat)
"""

from collections.abc import Iterator, Sequence

import numpy as np

from stretto.data.tokens import Tokenizer
from stretto.types import Ints, Message

__all__ = ["continue_chat", "end_of_turn"]


def continue_chat(
    tokenizer: Tokenizer, token_ids_T: Ints, before: Sequence[Message], written: str, then: Sequence[Message]
) -> Ints | None:
    """The ids to append to a row so that it goes on as ``before``, the answer ``written``, ``then``, the next answer.

    ``token_ids_T``: the row so far, prompt and what the policy wrote, exactly as sampled, with or without the tokens
    that end its turn; where they are missing (a token budget cut it) they are the first that are returned. Everything
    returned was not written by the policy: its mask is 0. ``written`` is ``tokenizer.decode`` of the last completion.

    None if the row is no beginning of the conversation as the template renders it: the template rewrites earlier
    turns (Qwen3 drops their ``<think>``), trims or adds text, or the policy ended its turn with another token than the
    template. Then a new row has to begin, from ``tokenizer.encode_prompt`` of the whole conversation.

    DataError if the template refuses the messages.
    """
    whole = tokenizer.encode_prompt((*before, Message(role="assistant", content=written), *then))
    if np.array_equal(whole[: len(token_ids_T)], token_ids_T):
        return whole[len(token_ids_T) :]
    # What was sampled need not be split into tokens as an encoder would: texts are compared, up to where a turn ends.
    row = tokenizer.decode(token_ids_T, specials=True)
    places = _ends(whole, tokenizer.turn_end)
    place = next((n for n in places if tokenizer.decode(whole[:n], specials=True) == row), None)
    return None if place is None else whole[place:]


def end_of_turn(tokenizer: Tokenizer) -> Ints:
    """The ids a policy writes to end its turn, int32 [T]: as its chat template ends one, else the eos."""
    return np.array(tokenizer.turn_end or (tokenizer.eos_id,), np.int32)


def _ends(token_ids_T: Ints, turn_end: tuple[int, ...]) -> Iterator[int]:
    """The places just behind and just before each end of a turn, the last turn first."""
    if turn_end:
        for start in reversed(range(len(token_ids_T) - len(turn_end) + 1)):
            if tuple(token_ids_T[start : start + len(turn_end)]) == turn_end:
                yield start + len(turn_end)
                yield start
