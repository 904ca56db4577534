"""The built-in rewards, one file per kind. Each is a frozen dataclass whose fields are its settings.

``stretto.environments.rewards.resolve`` checks settings by the fields' names and types; what else must hold of them is
checked when one is made, with ConfigError.
"""

from collections.abc import Mapping
from typing import Any

from stretto.environments.rewards.builtin.exact import ExactMatch
from stretto.environments.rewards.builtin.length import Length, Overlong
from stretto.environments.rewards.builtin.mathematics import Math
from stretto.environments.rewards.builtin.models import RewardModel
from stretto.environments.rewards.builtin.numeric import Number
from stretto.environments.rewards.builtin.played import EnvironmentScore
from stretto.environments.rewards.builtin.regexes import Regex
from stretto.environments.rewards.builtin.repetition import Repetition
from stretto.environments.rewards.builtin.schemas import JsonSchema
from stretto.environments.rewards.builtin.tags import Tags
from stretto.environments.rewards.builtin.tasks import ReasoningGym

__all__ = ["BUILTIN"]

BUILTIN: Mapping[str, type[Any]] = {
    "exact_match": ExactMatch,
    "number": Number,
    "math": Math,
    "regex": Regex,
    "json_schema": JsonSchema,
    "reasoning_gym": ReasoningGym,
    "length": Length,
    "overlong": Overlong,
    "tags": Tags,
    "repetition": Repetition,
    "environment": EnvironmentScore,
    "reward_model": RewardModel,
}
"""The built-in rewards by the name that ``reward.use`` takes."""
