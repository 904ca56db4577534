"""The reward ``reasoning_gym``: the scorer of the task that a prompt was made by.

Its scorers are other people's code, of very different care, so each is tried on its own prompts before the run: what
cannot score its own gold answer is refused with the reason. A scorer that scores the
gold answer rightly and raises on another could not read that one: it is wrong, and counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from stretto.environments.rewards.builtin.answers import judged_text, refuse_without
from stretto.environments.rewards.context import Context
from stretto.errors import ConfigError, DataError, RewardError
from stretto.types import Prompt, Trajectory

__all__ = ["ReasoningGym"]

_TRIED = 8
"""Prompts of each task whose gold answers are scored before a run; some scorers take a tenth of a second."""

_FULL = 1.0 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym:
    """The score in [0, 1] of reasoning-gym's own scorer, for prompts of the source ``reasoning_gym``.

    Needs the extra [tasks]. ``floor``: the credit that the scorer gives to nonsense (some give 0.01 or 0.05), taken
    off: max(0, (score - floor) / (1 - floor)). ``inside``: judge what stands in this tag. ``unproved``: take tasks
    that have no gold answer to try the scorer on. The metric ``logged/scorer_raised`` is the share of answers on which
    the scorer raised.
    """

    floor: float = 0.0
    inside: str | None = None
    unproved: bool = False

    def __post_init__(self) -> None:
        refuse_without("reasoning_gym", "tasks", "reasoning_gym")
        if not 0 <= self.floor < 1:
            raise ConfigError(f"the reward 'reasoning_gym' has floor={self.floor:g}. Give 0 or more, below 1.")

    def __call__(self, prompt: Prompt, trajectory: Trajectory, context: Context) -> float:
        task, entry = _entry(prompt)
        text, raised, score = judged_text(trajectory.text, self.inside), 0.0, 0.0
        try:
            score = 0.0 if text is None else float(_scorer(task)(answer=text.strip(), entry=entry))
        except Exception as error:
            if not _knows_gold(task, entry):
                raise RewardError(
                    f"reasoning-gym's scorer of {task} raised {type(error).__name__}: {error}, and it does not score "
                    f"the gold answer of the prompt {prompt.uid!r} rightly either. Leave the task out."
                ) from error
            raised = 1.0
        context.log("scorer_raised", raised)
        return max(0.0, (score - self.floor) / (1.0 - self.floor))

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Every prompt names its task, and the scorer of every task is right about the gold answers of its first."""
        tried: dict[str, int] = {}
        for prompt in prompts:
            try:
                task, entry = _entry(prompt)
            except RewardError as error:
                raise DataError(str(error)) from error
            tried[task] = tried.get(task, 0) + 1
            if tried[task] <= _TRIED:
                self._try(task, entry)

    def warm(self) -> None:
        """Import it; that takes seconds."""
        import reasoning_gym  # pyright: ignore[reportMissingTypeStubs]

        assert reasoning_gym.get_score_answer_fn is not None

    def _try(self, task: str, entry: Mapping[str, Any]) -> None:
        gold = entry.get("answer")
        if gold is None:
            if self.unproved:
                return
            raise DataError(
                f"reasoning-gym's task {task} has no gold answer, so nothing shows that its scorer ever gives credit. "
                "Leave it out, or set reward.with.unproved=true."
            )
        try:
            score = _score(task, gold, entry)
        except Exception as error:
            raise DataError(
                f"reasoning-gym's scorer of {task} raises {type(error).__name__}: {error} on its own gold answer. "
                "Leave the task out."
            ) from error
        if score < _FULL:
            raise DataError(
                f"reasoning-gym's scorer of {task} gives {score:g} to its own gold answer {gold!r}, so full marks "
                "could not be had. Leave the task out."
            )


def _entry(prompt: Prompt) -> tuple[str, dict[str, Any]]:
    task, entry = prompt.data.get("task"), prompt.data.get("entry")
    if not isinstance(task, str) or not isinstance(entry, Mapping):
        raise RewardError(
            f"the prompt {prompt.uid!r} has no task and entry of reasoning-gym. Use prompts.type=reasoning_gym, or "
            "another reward."
        )
    return task, dict(cast("Mapping[str, Any]", entry))


def _knows_gold(task: str, entry: Mapping[str, Any]) -> bool:
    """Whether the scorer is right about the entry's own answer, if it has one."""
    gold = entry.get("answer")
    try:
        return gold is None or _score(task, gold, entry) >= _FULL
    except Exception:  # noqa: BLE001 - the caller raises, from the first error
        return False


def _score(task: str, answer: str, entry: Mapping[str, Any]) -> float:
    return float(_scorer(task)(answer=answer, entry=dict(entry)))


@lru_cache(maxsize=256)
def _scorer(task: str) -> Callable[..., Any]:
    # An extra: only who judges its tasks needs it.
    import reasoning_gym  # pyright: ignore[reportMissingTypeStubs]

    return reasoning_gym.get_score_answer_fn(task)
