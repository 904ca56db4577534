"""Rewards for length: ``length`` (near a target) and ``overlong`` (a soft penalty before the limit)."""

from dataclasses import dataclass
from typing import Literal

from stretto.errors import ConfigError
from stretto.types import Prompt, Trajectory

__all__ = ["Length", "Overlong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """1 at ``target``, falling evenly to 0 at ``width`` away from it: max(0, 1 - |length - target| / width).

    ``unit``: ``tokens`` written (the end token too), ``characters`` or ``words`` of the text.
    """

    target: int
    width: int
    unit: Literal["tokens", "characters", "words"] = "tokens"

    def __post_init__(self) -> None:
        if self.target < 0 or self.width < 1:
            raise ConfigError(
                f"the reward 'length' has target={self.target}, width={self.width}. Give a target of 0 or more and a "
                "width of 1 or more."
            )

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        if self.unit == "tokens":
            length = trajectory.num_written
        else:
            length = len(trajectory.text if self.unit == "characters" else trajectory.text.split())
        return max(0.0, 1.0 - abs(length - self.target) / self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """The soft over-long punishment of DAPO (arXiv:2503.14476, eq. 13), in tokens written, y of them:

    0 up to ``limit - buffer``; then ((limit - buffer) - y) / buffer; -1 beyond ``limit``.
    """

    limit: int
    buffer: int

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.limit:
            raise ConfigError(
                f"the reward 'overlong' has limit={self.limit}, buffer={self.buffer}. The buffer is 1 or more and lies "
                "within the limit; limit=sampling.max_tokens is the usual choice."
            )

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        free = self.limit - self.buffer
        return min(0.0, max(-1.0, (free - trajectory.num_written) / self.buffer))
