"""The filters at the pool: which finished draws of the main phase are not trained on.

Dropping groups of equal rewards and drawing others until the batch is full is DAPO's dynamic sampling (Yu et al.,
arXiv:2503.14476, section 3.2, the constraint of eq. 11: 0 < number of right answers < G). Pure, but for the user's
function, which is called on the event loop. What replaces a draw, and how often, is the pool's.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import cast

import numpy as np

from stretto.config.filters import FilterConfig, FilterKind, LengthRange, RewardRange
from stretto.config.recipe import Recipe
from stretto.errors import ConfigError, PoolError, nearest
from stretto.imports import find_named, is_named, told
from stretto.runtime.drops import Dropped, scores_of
from stretto.types import Group

__all__ = ["Filter", "GroupFilter", "drops_zero_variance", "filter_of", "resolve_filter"]

GroupFilter = Callable[[Group], bool | str]
"""A user's filter: true keeps a group, false drops it, text drops it for that reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filter:
    """The filters of a phase; by default none. ``name`` is what ``function`` is called in messages."""

    zero_variance: bool = False
    reward: RewardRange = field(default_factory=RewardRange)
    score: str | None = None
    length: LengthRange = field(default_factory=LengthRange)
    function: GroupFilter | None = None
    name: str = ""

    @property
    def kinds(self) -> tuple[FilterKind, ...]:
        """The filters that are on, in the order in which a group meets them."""
        on: dict[FilterKind, bool] = {
            "zero_variance": self.zero_variance,
            "reward": self.reward.min is not None or self.reward.max is not None,
            "length": self.length.min is not None or self.length.max is not None,
            "use": self.function is not None,
        }
        return tuple(kind for kind, active in on.items() if active)

    def judge(self, draw: int, groups: Mapping[str, Group]) -> Dropped | None:
        """Why ``draw`` is not trained on, or None if it is.

        ``groups``: those that the boundary reads, by node; mostly one. Rewards and lengths are over all attempts of the
        draw. A draw is of zero variance if every Model's attempts have one reward, so that none of them is taught.
        Raises PoolError if rewards are looked at and there are none, or if the user's function fails.
        """
        kinds = self.kinds
        scores = scores_of(groups.values())
        rewards = scores.get(self.score or "", ())
        if not rewards and ("zero_variance" in kinds or "reward" in kinds):
            raise PoolError(
                f"filter.{kinds[0]} looks at rewards, and no attempt of draw {draw} has {_named(self.score, scores)}"
            )
        for kind in kinds:
            if kind == "zero_variance":
                why = self._same(groups)
            elif kind == "reward":
                why = _outside("mean reward", mean(rewards), "filter.reward", self.reward)
            elif kind == "length":
                written = sum(t.num_written for group in groups.values() for t in group.trajectories)
                attempts = sum(len(group.attempts) for group in groups.values())
                why = _outside("mean length", written / attempts, "filter.length", self.length)
            else:
                why = next(filter(None, (self._ask(group) for group in groups.values())), None)
            if why is not None:
                return Dropped(kind=kind, why=why, scores=scores, score=self.score or "")
        return None

    def _same(self, groups: Mapping[str, Group]) -> str | None:
        """That the attempts of every Model have one reward each, in words; a charge on long ones is left out of it."""
        by_model: dict[str, list[float]] = {}
        for t in (t for group in groups.values() for t in group.attempts):
            reward = t.uncharged if self.score is None else t.rewards.get(self.score)
            if reward is not None:
                by_model.setdefault(t.key.model, []).append(reward)
        if any(min(rewards) != max(rewards) for rewards in by_model.values()):
            return None
        values = sorted({f"{rewards[0]:g}" for rewards in by_model.values()})
        return f"every attempt has {self.score or 'reward'} {' or '.join(values)}"

    def _ask(self, group: Group) -> str | None:
        """Why the user's function drops a group, or None."""
        assert self.function is not None
        try:
            answer = cast(object, self.function(group))
        except Exception as error:  # the user's code may raise anything, and a failure is no answer
            raise PoolError(
                f"filter.use={self.name} failed on draw {group.draw} (prompt {group.prompt.uid!r}): {told(error)}. "
                "Mend the function; --debug shows more."
            ) from error
        if isinstance(answer, bool | np.bool_):
            return None if answer else "no reason given"
        if isinstance(answer, str) and answer:
            return answer
        if inspect.iscoroutine(answer):
            answer.close()
        raise PoolError(
            f"filter.use={self.name} gave {answer!r} for draw {group.draw}, and it must give true to keep a group, "
            "false to drop it, or the reason to drop it as text. Return one of them."
        )


def _named(score: str | None, scores: Mapping[str, tuple[float, ...]]) -> str:
    """The end of the sentence that says what is missing."""
    if score is None or not scores:
        return "one. Use a workflow that judges its groups, or leave it out."
    return f"one called {score!r} (filter.score).{nearest(score, [name for name in scores if name])}"


def _outside(what: str, value: float, key: str, bounds: RewardRange | LengthRange) -> str | None:
    if bounds.min is not None and value < bounds.min:
        return f"{what} {value:g} is below {key}.min={bounds.min:g}"
    if bounds.max is not None and value > bounds.max:
        return f"{what} {value:g} is above {key}.max={bounds.max:g}"
    return None


def filter_of(recipe: Recipe, given: GroupFilter | None = None) -> Filter:
    """The filters of a recipe's main phase; ``given`` is a function in place of the one that ``use`` names.

    Raises ConfigError for a function that cannot be found or called.
    """
    config = recipe.filter
    return Filter(
        zero_variance=drops_zero_variance(recipe),
        reward=config.reward,
        score=config.score,
        length=config.length,
        function=resolve_filter(config, given),
        name=config.use or "",
    )


def drops_zero_variance(recipe: Recipe) -> bool:
    """``filter.zero_variance``; null is what the algorithm is defined with: on where it has ``dynamic_sampling``."""
    said = recipe.filter.zero_variance
    return bool(getattr(recipe.algorithm, "dynamic_sampling", False)) if said is None else said


def resolve_filter(config: FilterConfig, given: GroupFilter | None = None) -> GroupFilter | None:
    """The user's function, if there is one. Raises ConfigError for a wrong name or what is no function of a group."""
    use = config.use
    if use is None:
        return None
    if given is None and use.startswith("python:"):
        raise ConfigError(
            f"filter.use={use} is a function that was passed to stretto.train, and it cannot be found by name. Run "
            "from Python again with it, or put the function into a module and name it module:function."
        )
    if given is None and not is_named(use):
        raise ConfigError(f"filter.use={use} is not module:function. Name a function of a Group so.")
    found = given if given is not None else find_named(use, f"filter.use={use}")
    if not callable(found) or inspect.iscoroutinefunction(found):
        what = "a coroutine function" if callable(found) else f"a {type(found).__name__}"
        raise ConfigError(
            f"filter.use={use} is {what}, and must be a plain function from a Group to true, false or text. Give one."
        )
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise ConfigError(
            f"filter.use={use} cannot be called with one argument, the group ({error}). Let it take just that."
        ) from error
    except ValueError:
        pass  # a function that is written in C and tells no signature
    return cast("GroupFilter", found)
