"""The reward ``math``: two expressions compared by math-verify.

Its own timeout is an alarm, which does nothing off the main thread, so it is turned off here: what hangs is ended by
``reward.timeout_s``, which kills the reward process.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stretto.environments.rewards.builtin.answers import answer_of, check_answers, judged_text, refuse_without
from stretto.environments.rewards.context import Context
from stretto.errors import DataError, RewardError
from stretto.types import Prompt, Trajectory

__all__ = ["Math"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Math:
    """1 if the text's final expression equals the answer as mathematics (1/2 = 0.5 = \\\\frac{1}{2}), else 0.

    Needs the extra [math]. ``answer`` and ``inside`` as in ``exact_match``. An answer that math-verify cannot compare
    because it raises is wrong, and counted in the metric ``logged/scorer_raised``.
    """

    answer: str = "answer"
    inside: str | None = None

    def __post_init__(self) -> None:
        refuse_without("math_verify", "math", "math")

    def __call__(self, prompt: Prompt, trajectory: Trajectory, context: Context) -> float:
        gold = _gold(str(answer_of(prompt, self.answer)))
        if not gold:
            raise RewardError(self._no_mathematics(prompt))
        text, raised, right = judged_text(trajectory.text, self.inside), 0.0, False
        try:
            if text is not None:
                right = _verify(gold, _parse(text))
        except Exception:  # noqa: BLE001 - counted; whatever of sympy's it may be
            # Of the gold answer it was said before the run that it can be compared, so this is about the text.
            raised = 1.0
        context.log("scorer_raised", raised)
        return float(right)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Every prompt has an answer that math-verify can read and finds equal to itself."""
        check_answers(prompts, self.answer)
        for answer, prompt in {str(p.data[self.answer]): p for p in prompts}.items():
            gold = _gold(answer)
            if not gold or not _verify(gold, gold):
                raise DataError(self._no_mathematics(prompt))

    def warm(self) -> None:
        """Import it; that takes seconds."""
        _gold("1")

    def _no_mathematics(self, prompt: Prompt) -> str:
        return (
            f"math-verify cannot read the answer of the prompt {prompt.uid!r} ({prompt.data[self.answer]!r}), or does "
            "not find it equal to itself. Write it as LaTeX or a number, or use another reward, such as exact_match."
        )


@lru_cache(maxsize=4096)
def _gold(answer: str) -> list[Any]:
    """The answer as math-verify reads it; LaTeX without its dollars too. Empty if it cannot."""
    for name in ("math_verify.parser", "math_verify.grader"):
        # They warn of the timeout that is turned off here on purpose.
        logging.getLogger(name).setLevel(logging.ERROR)
    bare = "\\" in answer and "$" not in answer and "\\boxed" not in answer
    text = f"${answer}$" if bare else answer
    try:
        return _parse(text)
    except Exception:  # noqa: BLE001 - whatever of sympy's it may be; the callers refuse the answer
        return []


def _parse(text: str) -> list[Any]:
    # An extra, which takes seconds to import: only who judges mathematics pays.
    import math_verify  # pyright: ignore[reportMissingTypeStubs]

    parse: Callable[..., list[Any]] = math_verify.parse
    return parse(text, parsing_timeout=None, raise_on_error=True)


def _verify(gold: list[Any], found: list[Any]) -> bool:
    import math_verify  # pyright: ignore[reportMissingTypeStubs]

    return math_verify.verify(gold, found, timeout_seconds=None, raise_on_error=True)
