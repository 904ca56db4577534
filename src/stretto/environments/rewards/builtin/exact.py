"""The reward ``exact_match``."""

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.environments.rewards.builtin.answers import answer_of, check_answers, judged_text
from stretto.types import Prompt, Trajectory

__all__ = ["ExactMatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """1 if the text is the prompt's answer, else 0.

    ``strip``: spaces around both count for nothing. ``ignore_case``: nor does case. ``answer``: the key of the answer
    in ``prompt.data``. ``inside``: judge what stands in this tag, ``<answer>...</answer>``, not the whole text.
    """

    strip: bool = True
    ignore_case: bool = False
    answer: str = "answer"
    inside: str | None = None

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        expected, text = str(answer_of(prompt, self.answer)), judged_text(trajectory.text, self.inside)
        if text is None:
            return 0.0
        if self.strip:
            expected, text = expected.strip(), text.strip()
        if self.ignore_case:
            expected, text = expected.casefold(), text.casefold()
        return 1.0 if text == expected else 0.0

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Every prompt has an answer."""
        check_answers(prompts, self.answer)
