"""The reward ``tags``: the text is made of given XML tags, in order, each once, and nothing stands outside them."""

import re
from dataclasses import dataclass

from stretto.errors import ConfigError
from stretto.types import Prompt, Trajectory

__all__ = ["Tags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """1 if the text is ``<think>...</think><answer>...</answer>`` (by default), spaces between left out; else 0.

    ``names``: the tags in order. ``graded``: instead of 0, half of the share of tags that are there exactly once,
    opened before closed, so that there is something to climb.
    """

    names: tuple[str, ...] = ("think", "answer")
    graded: bool = False

    def __post_init__(self) -> None:
        wrong = [name for name in self.names if not re.fullmatch(r"[\w-]+", name)]
        if not self.names or wrong or len(set(self.names)) != len(self.names):
            raise ConfigError(
                f"the reward 'tags' has names={list(self.names)}. Give the names of different tags without brackets, "
                "such as [think, answer]."
            )

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        text = trajectory.text
        good = [self._once(name, text) for name in self.names]
        whole = r"\s*".join(rf"<{name}>.*?</{name}>" for name in self.names)
        if all(good) and re.fullmatch(whole, text.strip(), flags=re.DOTALL):
            return 1.0
        return 0.5 * sum(good) / len(good) if self.graded else 0.0

    def _once(self, name: str, text: str) -> bool:
        start, end = f"<{name}>", f"</{name}>"
        return text.count(start) == 1 and text.count(end) == 1 and text.index(start) < text.index(end)
