"""What is kept of attempts at a prompt of an evaluation set: what is counted, and what is shown."""

from dataclasses import dataclass

from stretto.errors import RewardError, nearest
from stretto.runtime.eval_sets import EvalSet
from stretto.types import Finish, Prompt, Trajectory

__all__ = ["Attempt", "Tried", "kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is kept of one attempt. ``score`` decides whether it is right, ``reward`` is the total."""

    text: str
    finish: Finish
    reward: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A prompt with its attempts, in order of samples."""

    prompt: Prompt
    attempts: tuple[Attempt, ...]


def kept(eval_set: EvalSet, prompt: Prompt, trajectory: Trajectory) -> Attempt:
    """The attempt with the score that counts."""
    name = eval_set.score
    if name is not None and name not in trajectory.rewards:
        raise RewardError(
            f"evaluation {eval_set.name!r} counts by the score {name!r} (evaluate.score), and the reward gives "
            f"{', '.join(map(repr, sorted(trajectory.rewards)))}.{nearest(name, trajectory.rewards)}"
        )
    score = trajectory.reward if name is None else trajectory.rewards[name]
    if trajectory.reward is None or score is None:
        what = "reward" if name is None else f"score {name!r}"
        raise RewardError(
            f"evaluation {eval_set.name!r} has an attempt without a {what} ({prompt.uid!r}), so an accuracy would be "
            "wrong. Give a reward that applies to all of its prompts."
        )
    return Attempt(text=trajectory.text, finish=trajectory.finish, reward=trajectory.reward, score=score)
