"""Rewards: what judges trajectories, ours by name and the user's own, alone or several with weights.

A reward is a function of one attempt, ``(prompt, trajectory)``, or of a group, in one of the forms that ``forms.py``
lists, sync or async. It returns a finite number, a dict of them, or None where it does not apply.

Importing this loads no configuration, since a reward process does; finding rewards by name is in ``resolve.py``.
"""

from stretto.environments.rewards.context import Context
from stretto.environments.rewards.contract import Answer, Part, Reward, Rewards, Scores, reward_name
from stretto.environments.rewards.forms import bind

__all__ = ["Answer", "Context", "Part", "Reward", "Rewards", "Scores", "bind", "reward_name"]
