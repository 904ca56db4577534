"""The reward ``environment``: what the environment of a task with several turns said at the end."""

from dataclasses import dataclass

from stretto.errors import RewardError
from stretto.types import Prompt, Trajectory

__all__ = ["EnvironmentScore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentScore:
    """What the environment's ``score()`` gave at the end of the attempt."""

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> object:
        if trajectory.info.get("environment") is None:
            raise RewardError(
                "its environment gave no score. Configure an environment whose score() returns a number, or use "
                "another reward."
            )
        return trajectory.info["environment"]
