"""The reward ``number``: the final number of a text, compared with the answer as a number.

Owns how numbers are read: ``#### 42`` and ``\\boxed{42}`` mark one; else the last in the text is meant. Thousands
separators, currency and percent signs count for nothing. No expression is computed; that is ``math``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from stretto.environments.rewards.builtin.answers import answer_of, check_answers, judged_text
from stretto.errors import ConfigError, DataError, RewardError
from stretto.types import Prompt, Trajectory

__all__ = ["Number", "last_number"]

# A sign belongs to a number unless something stands right before it that it could be a minus of.
_NUMBER = re.compile(r"(?:(?<![\w.)])[-+\u2212])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_BOXED = re.compile(r"\\boxed\s*\{")
_SPACING = re.compile(r"\{,\}|\\[,!; ]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """1 if the number of the text equals that of the answer, else 0; the answer is read like the text.

    ``marked``: only a number marked by ``####`` or in a box counts, else the last of the text does if none is marked.
    ``tolerance``: the largest difference that is still equal. ``answer`` and ``inside`` as in ``exact_match``.
    """

    marked: bool = False
    tolerance: float = 0.0
    answer: str = "answer"
    inside: str | None = None

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ConfigError(f"the reward 'number' has tolerance={self.tolerance:g}. Give 0 or more.")

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        expected = last_number(str(answer_of(prompt, self.answer)))
        if expected is None:
            raise RewardError(self._no_number(prompt))
        text = judged_text(trajectory.text, self.inside)
        found = None if text is None else last_number(text, marked=self.marked)
        if found is None:
            return 0.0
        return float(abs(found - expected) <= Decimal(self.tolerance) if self.tolerance else found == expected)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Every prompt has an answer with a number in it."""
        check_answers(prompts, self.answer)
        for prompt in prompts:
            if last_number(str(prompt.data[self.answer])) is None:
                raise DataError(self._no_number(prompt))

    def _no_number(self, prompt: Prompt) -> str:
        return (
            f"the answer of the prompt {prompt.uid!r} has no number in it ({prompt.data[self.answer]!r}). "
            "Give it one, or use another reward, such as exact_match."
        )


def last_number(text: str, *, marked: bool = False) -> Decimal | None:
    """The number that ``text`` ends on: in its last box, else after its last ``####``, else (unless ``marked``) its
    last; None if there is none."""
    boxed = _last_box(text)
    if boxed is not None:
        return _last(boxed)
    _, mark, after = text.rpartition("####")
    if mark:
        first = _NUMBER.search(_SPACING.sub("", after))
        return None if first is None else _value(first[0])
    return None if marked else _last(text)


def _last(text: str) -> Decimal | None:
    found = [match[0] for match in _NUMBER.finditer(_SPACING.sub("", text))]
    return _value(found[-1]) if found else None


def _value(written: str) -> Decimal | None:
    try:
        value = Decimal(written.replace(",", "").replace("\u2212", "-"))
    except InvalidOperation:  # an exponent beyond all bounds
        return None
    return value if value.is_finite() else None


def _last_box(text: str) -> str | None:
    """What stands in the last closed ``\\boxed{}``; braces inside it are counted."""
    for start in reversed([match.end() for match in _BOXED.finditer(text)]):
        depth = 1
        for at in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                return text[start:at]
    return None
