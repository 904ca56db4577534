"""Evaluation: one greedy attempt at every held-out prompt, judged by the recipe's reward."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stretto.environments.judge import GroupDropped
from stretto.errors import RewardError
from stretto.runtime.parts import Parts
from stretto.types import Prompt, Trajectory
from stretto.workflows.nodes import rollout

__all__ = ["EvalResult", "evaluate"]

T = TypeVar("T")
FULL_MARK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvalResult:
    """``attempts`` in the order of ``prompts``, each judged. ``dropped`` more had no reward, by the recipe's policy."""

    name: str
    prompts: tuple[Prompt, ...]
    attempts: tuple[Trajectory, ...]
    dropped: int

    @property
    def n(self) -> int:
        """How many prompts were evaluated."""
        return len(self.prompts)

    @property
    def accuracy(self) -> float:
        """The share of attempts with a reward of 1 or more."""
        return sum(t.reward is not None and t.reward >= FULL_MARK for t in self.attempts) / self.n

    @property
    def metrics(self) -> dict[str, float]:
        """By the names that ``until`` and ``keep_best`` use."""
        return {
            f"{self.name}/accuracy": self.accuracy,
            f"{self.name}/reward": sum(t.reward or 0.0 for t in self.attempts) / self.n,
            f"{self.name}/truncated": sum(t.finish == "length" for t in self.attempts) / self.n,
            f"{self.name}/dropped": float(self.dropped),
        }


async def evaluate(parts: Parts, name: str, prompts: Sequence[Prompt]) -> EvalResult:
    """Evaluate the weights that the engine holds. All prompts are in flight at once; the engine queues them.

    A reward that fails ends it with RewardError, or under the policy ``drop`` leaves the prompt out, counted.
    """
    binding = parts.binding("evaluation", parts.greedy)

    async def attempt(index: int, prompt: Prompt) -> Trajectory | None:
        group = await rollout(
            prompt, binding.generate("policy", index), binding.tokenize(index), binding.environment(index), n=1
        )
        try:
            judged = await parts.judge.judge(group)
        except GroupDropped:
            return None
        return judged.attempts[0]

    attempts = await _all([attempt(index, prompt) for index, prompt in enumerate(prompts)])
    judged = [(p, t) for p, t in zip(prompts, attempts, strict=True) if t is not None]
    unjudged = next((p.uid for p, t in judged if t.reward is None), None)
    if unjudged is not None or not judged:
        what = "no attempt with a reward" if unjudged is None else f"an attempt without a reward ({unjudged!r})"
        raise RewardError(
            f"evaluation {name!r} has {what}, so an accuracy would be wrong. "
            "Give a reward that applies to the held-out prompts."
        )
    return EvalResult(
        name=name,
        prompts=tuple(p for p, _ in judged),
        attempts=tuple(t for _, t in judged),
        dropped=len(attempts) - len(judged),
    )


async def _all(attempts: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """The results in order; the first failure cancels the rest and is raised as it is."""
    tasks = [asyncio.ensure_future(attempt) for attempt in attempts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
