"""Evaluation: one greedy attempt at every held-out prompt, judged by the recipe's reward."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.errors import RewardError
from stretto.roles import Generate, Tokenize
from stretto.runtime.parts import Parts
from stretto.types import Prompt, Trajectory
from stretto.workflows.nodes import rollout

__all__ = ["EvalResult", "evaluate"]

FULL_MARK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvalResult:
    """``attempts`` in the order of ``prompts``, each judged."""

    name: str
    prompts: tuple[Prompt, ...]
    attempts: tuple[Trajectory, ...]

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
        rewards = [t.reward for t in self.attempts if t.reward is not None]
        return {
            f"{self.name}/accuracy": self.accuracy,
            f"{self.name}/reward": sum(rewards) / len(rewards) if rewards else 0.0,
            f"{self.name}/truncated": sum(t.finish == "length" for t in self.attempts) / self.n,
        }


async def evaluate(parts: Parts, name: str, prompts: Sequence[Prompt]) -> EvalResult:
    """Evaluate the weights that the engine holds. All prompts are in flight at once; the engine queues them."""
    binding = parts.binding("evaluation", parts.greedy)

    async def attempt(index: int, prompt: Prompt) -> Trajectory:
        generate, tokens = binding.handle("generate", "policy", index), binding.handle("tokenize", "policy", index)
        assert isinstance(generate, Generate) and isinstance(tokens, Tokenize)
        judged = await parts.judge.judge(await rollout(prompt, generate, tokens, n=1))
        return judged.trajectories[0]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(i, prompt)) for i, prompt in enumerate(prompts)]
    attempts = tuple(task.result() for task in tasks)
    unjudged = next((t for t in attempts if t.reward is None), None)
    if unjudged is not None:
        raise RewardError(
            f"evaluation {name!r} has an attempt without a reward ({prompts[unjudged.key.draw].uid!r}), so an accuracy "
            "would be wrong. Give a reward that applies to every held-out prompt."
        )
    return EvalResult(name=name, prompts=tuple(prompts), attempts=attempts)
