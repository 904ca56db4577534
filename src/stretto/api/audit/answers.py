"""The answers that an audit makes to a prompt: right ones, and wrong ones of the kinds that bad rewards pay for.

Pure: the same prompt, seed and place give the same answers. Owns what is written, not what it should get.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from stretto.data.tokens import Tokenizer
from stretto.errors import DataError
from stretto.types import Group, Ints, Key, Prompt, Trajectory

__all__ = ["DRESSED", "JUNK", "LABELS", "Answer", "Kind", "Writer", "gold_of", "group_of", "make_answers"]

Kind: TypeAlias = Literal[
    "gold",
    "newline",
    "spaces",
    "sentence",
    "empty",
    "words",
    "word",
    "repeated",
    "echo",
    "same_length",
    "swapped",
    "listed",
]

LABELS: dict[Kind, str] = {
    "gold": "its own answer",
    "newline": "  and a line end",
    "spaces": "  between spaces",
    "sentence": "  as 'The answer is X.'",
    "empty": "nothing at all",
    "words": "random words",
    "word": "one random word",
    "repeated": "one word repeated",
    "echo": "the prompt again",
    "same_length": "junk as long as its answer",
    "swapped": "another prompt's answer",
    "listed": "its answer among three",
}
"""What a reader sees, in the order of a table."""

DRESSED: tuple[Kind, ...] = ("newline", "spaces", "sentence")
"""The right answer in usual dressings: how strict a reward is, no fault either way."""

JUNK: tuple[Kind, ...] = ("words", "word", "repeated", "echo", "same_length")
"""Answers without sense."""

_WORDS = ("lamp", "river", "quartz", "seven", "under", "bicycle", "mild", "north", "velvet", "crumb", "owl", "gather")
_LETTERS = "bcdfghjklmnpqrstvwxz"
_NUM_WORDS = 8
_SWAP_TRIES = 20
_OTHERS = 2
"""Wrong guesses around the right one of an answer that hedges."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A text as an attempt at a prompt."""

    kind: Kind
    prompt: Prompt
    text: str
    place: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Writer:
    """What the policy can write: texts as tokens, cut to the budget."""

    tokenizer: Tokenizer
    max_tokens: int

    def ids(self, text: str) -> Ints | None:
        """Token ids without the end; None if the tokenizer cannot write it."""
        try:
            return self.tokenizer.encode(text)
        except DataError:
            return None

    def cut(self, text: str) -> str:
        """``text`` as far as the budget goes, the end token included."""
        ids = self.ids(text)
        room = max(self.max_tokens - 1, 1)
        return text if ids is None or len(ids) <= room else self.tokenizer.decode(ids[:room])


def gold_of(prompt: Prompt) -> str | None:
    """The prompt's own answer as text; None if it has none, or one that is not a text or a number."""
    answer = prompt.data.get("answer")
    return str(answer) if isinstance(answer, str | int | float) else None


def make_answers(prompts: Sequence[Prompt], writer: Writer, seed: int) -> list[Answer]:
    """All made answers to ``prompts``, prompt by prompt; those that happen to be right are left out."""
    golds = [gold_of(prompt) for prompt in prompts]
    made: list[Answer] = []
    for place, prompt in enumerate(prompts):
        rng = np.random.default_rng([seed, place])
        gold = golds[place]
        texts: dict[Kind, str] = {} if gold is None else _right(gold)
        wrong = _junk(prompt, gold, writer, rng)
        wrong |= _of_others(golds, place, writer, rng)
        texts |= {kind: text for kind, text in wrong.items() if gold is None or _plain(text) != _plain(gold)}
        made += [Answer(kind=kind, prompt=prompt, text=text, place=place) for kind, text in texts.items()]
    return made


def _right(gold: str) -> dict[Kind, str]:
    return {"gold": gold, "newline": f"{gold}\n", "spaces": f" {gold} ", "sentence": f"The answer is {gold}."}


def _junk(prompt: Prompt, gold: str | None, writer: Writer, rng: np.random.Generator) -> dict[Kind, str]:
    words = [_WORDS[i] for i in rng.integers(0, len(_WORDS), _NUM_WORDS)]
    texts: dict[Kind, str] = {
        "empty": "",
        "words": writer.cut(" ".join(words)),
        "word": writer.cut(words[0]),
        "repeated": writer.cut(" ".join([words[1]] * writer.max_tokens)),
        "echo": writer.cut(prompt.text),
    }
    if gold:
        texts["same_length"] = "".join(_LETTERS[i] for i in rng.integers(0, len(_LETTERS), len(gold)))
    return texts


def _of_others(golds: Sequence[str | None], place: int, writer: Writer, rng: np.random.Generator) -> dict[Kind, str]:
    """The answer of another prompt, and the right one between two of others, if that fits the budget."""
    gold = golds[place]
    if gold is None:
        return {}
    drawn = [golds[int(i)] for i in rng.integers(0, len(golds), _SWAP_TRIES)]
    others = list(dict.fromkeys(other for other in drawn if other is not None and _plain(other) != _plain(gold)))
    made: dict[Kind, str] = {"swapped": others[0]} if others else {}
    if len(others) >= _OTHERS and gold.strip():
        listed = ", ".join([others[0], gold, others[1]])
        if writer.cut(listed) == listed:
            made["listed"] = listed
    return made


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def group_of(answers: Sequence[Answer], draw: int, writer: Writer) -> Group:
    """Answers to one prompt as the trajectories of a group, ended by the end token."""
    prompt = answers[0].prompt
    return Group(
        draw=draw,
        prompt=prompt,
        trajectories=tuple(_attempt(answer, Key(draw, i), writer) for i, answer in enumerate(answers)),
    )


def _attempt(answer: Answer, key: Key, writer: Writer) -> Trajectory:
    ids = writer.ids(answer.text)
    written = np.append(np.zeros(0, np.int32) if ids is None else ids, np.int32(writer.tokenizer.eos_id))
    prompt_ids = answer.prompt.token_ids
    length = len(prompt_ids) + len(written)
    mask_T = np.ones(length, np.uint8)
    mask_T[: len(prompt_ids)] = 0
    return Trajectory(
        key=key,
        token_ids_T=np.concatenate([prompt_ids, written]).astype(np.int32),
        mask_T=mask_T,
        logprobs_T=np.zeros(length, np.float32),
        versions=(),
        finish="stop",
        text=answer.text,
    )
