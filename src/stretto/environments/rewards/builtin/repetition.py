"""The reward ``repetition``: a penalty for saying the same again."""

from dataclasses import dataclass
from typing import Literal

from stretto.errors import ConfigError
from stretto.types import Prompt, Trajectory

__all__ = ["Repetition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Minus the share of n-grams that stood in the text before: 0 if none did, towards -1 if it only repeats itself.

    ``ngram``: how many in a row count as one. ``of``: ``words``, ``characters`` or ``tokens`` written. -(1 - distinct /
    all n-grams), the penalty of arXiv:2502.03373 as a share; a text shorter than one n-gram gives 0.
    """

    ngram: int = 3
    of: Literal["words", "characters", "tokens"] = "words"

    def __post_init__(self) -> None:
        if self.ngram < 1:
            raise ConfigError(f"the reward 'repetition' has ngram={self.ngram}. Give 1 or more.")

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        if self.of == "tokens":
            items: list[object] = trajectory.token_ids_T[trajectory.mask_T == 1].tolist()
        else:
            items = list(trajectory.text.split() if self.of == "words" else trajectory.text)
        grams = [tuple(items[i : i + self.ngram]) for i in range(len(items) - self.ngram + 1)]
        return len(set(grams)) / len(grams) - 1.0 if grams else 0.0
