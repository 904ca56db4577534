"""What follows when user code fails for a group: fail the run, try again, or drop the group up to a ceiling.

Owns the counts and the verdict with its words; not what failed or how it is tried again.
"""

from typing import Literal, Protocol

from stretto.environments.faults import Fault
from stretto.environments.judge import GroupDropped
from stretto.errors import RewardError

__all__ = ["FailurePolicy", "PolicyConfig"]

_MIN_GROUPS = 10
"""Groups before the share of dropped ones can end a run: one of two says little."""


class PolicyConfig(Protocol):
    """The keys of a recipe's section that say what follows from a failure."""

    @property
    def on_error(self) -> Literal["fail", "retry", "drop"]: ...

    @property
    def retries(self) -> int: ...

    @property
    def max_dropped(self) -> float: ...


class FailurePolicy:
    """The policy of one section (``environment``), with what has happened so far in this process.

    ``deterministic``: what is lost to a late or dead process fails the run even under ``drop``, since what is dropped
    would depend on the day.
    """

    def __init__(self, section: str, config: PolicyConfig, *, deterministic: bool) -> None:
        self._section, self._config, self._deterministic = section, config, deterministic
        self.groups = self.dropped = self.failures = 0
        self.first_failure: str | None = None

    def again(self, failed: int) -> bool:
        """Whether what has ``failed`` so many times is to be tried once more."""
        return self._config.on_error == "retry" and failed <= self._config.retries

    def note(self, why: str) -> None:
        """Something failed."""
        self.failures += 1
        self.first_failure = self.first_failure or why

    def verdict(self, why: str, fault: Fault) -> RewardError | GroupDropped:
        """What a group whose last try has failed raises."""
        section, config = self._section, self._config
        remedy = f"Fix the {section}, raise {section}.timeout_s" if fault.lost else f"Fix the {section}"
        if config.on_error == "retry":
            return RewardError(f"{why}, {config.retries + 1} times. {remedy}, or set {section}.on_error=drop.")
        if config.on_error == "fail":
            return RewardError(f"{why}. {remedy}, or set {section}.on_error=retry or drop.")
        if fault.lost and self._deterministic:
            return RewardError(
                f"{why}. Under schedule.deterministic=true a group is not dropped for this, since another day it might "
                f"not be. Raise {section}.timeout_s, set {section}.on_error=retry, or schedule.deterministic=false."
            )
        self.dropped += 1
        if self.groups >= _MIN_GROUPS and self.dropped / self.groups > config.max_dropped:
            return RewardError(
                f"{self.dropped} of {self.groups} groups were dropped, more than {section}.max_dropped="
                f"{config.max_dropped:g}. The first failure: {self.first_failure}. Fix the {section}, or raise "
                f"{section}.max_dropped."
            )
        return GroupDropped(why)
