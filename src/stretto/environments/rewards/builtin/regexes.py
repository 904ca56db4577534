"""The reward ``regex``: a pattern that the text has to match, or whose group has to be the answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stretto.environments.rewards.builtin.answers import answer_of, check_answers
from stretto.errors import ConfigError
from stretto.types import Prompt, Trajectory

__all__ = ["Regex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex:
    """1 if ``pattern`` matches the text, else 0; with ``group``, if that group of its last match is the answer.

    ``where``: the pattern has to match ``anywhere``, at the ``start``, or the ``whole`` text, spaces around it left
    out. ``ignore_case``, ``dot_all``: flags of the pattern (``.`` matches newlines too). ``answer``: the key of the
    answer in ``prompt.data``.
    """

    pattern: str
    group: int | str | None = None
    where: Literal["anywhere", "start", "whole"] = "anywhere"
    ignore_case: bool = False
    dot_all: bool = False
    answer: str = "answer"

    def __post_init__(self) -> None:
        try:
            compiled = self._compiled()
        except re.error as error:
            raise ConfigError(f"the reward 'regex' has a pattern that is none: {error}: {self.pattern!r}.") from error
        group = self.group
        if isinstance(group, str) and group not in compiled.groupindex:
            raise ConfigError(f"the reward 'regex' has group={group!r}, and its pattern names no such group.")
        if isinstance(group, int) and not 0 <= group <= compiled.groups:
            raise ConfigError(f"the reward 'regex' has group={group}, and its pattern has {compiled.groups}.")

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        match = self._match(trajectory.text)
        if self.group is None:
            return float(match is not None)
        expected = str(answer_of(prompt, self.answer)).strip()
        found = None if match is None else match[self.group]
        if found is None:
            return 0.0
        found = found.strip()
        if self.ignore_case:
            found, expected = found.casefold(), expected.casefold()
        return float(found == expected)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Where the answer is compared with, every prompt has one."""
        if self.group is not None:
            check_answers(prompts, self.answer)

    def _compiled(self) -> re.Pattern[str]:
        flags = (re.IGNORECASE if self.ignore_case else 0) | (re.DOTALL if self.dot_all else 0)
        return re.compile(self.pattern, flags)  # which keeps what it compiled

    def _match(self, text: str) -> re.Match[str] | None:
        compiled, text = self._compiled(), text.strip()
        if self.where == "whole":
            return compiled.fullmatch(text)
        if self.where == "start":
            return compiled.match(text)
        found = list(compiled.finditer(text))
        return found[-1] if found else None
