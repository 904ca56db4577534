"""Evaluation: attempts at every prompt of a set, judged, and what they say about the policy.

Seeds come from (set, prompt, sample), so a set's numbers do not depend on which others there are. Of an attempt only
what is counted and shown is kept, and a bounded number is under way at a time: sets may have thousands of prompts.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.algorithms.estimates import interval, majority, pass_at
from stretto.config.evaluation import powers
from stretto.errors import RewardError
from stretto.runtime.eval_sets import EvalSet
from stretto.runtime.fleet import Fleet
from stretto.runtime.pair_scores import pair_rewards
from stretto.runtime.pairs import PairJudge
from stretto.runtime.parts import Parts
from stretto.runtime.tried import Attempt, Tried
from stretto.together import together
from stretto.types import Prompt

__all__ = ["EvalResult", "evaluate"]


IN_FLIGHT = 1024
"""Attempts under way at a time: several times what an engine decodes at once, and a bound on memory and waiting."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvalResult:
    """What came of a set, ``attempts`` at each prompt. ``tried`` in the order of its prompts; ``dropped`` more had no
    reward, by policy.

    ``metrics`` by the names that ``until`` and ``keep_best`` use: NAME/accuracy and so on. ``pairs``: what was tried is
    which of two answers is better; an attempt is then the one that was found to be, and NAME/reward is the mean of what
    the chosen one has more.
    """

    name: str
    attempts: int
    greedy: bool
    tried: tuple[Tried, ...]
    dropped: int
    metrics: Mapping[str, float]
    pairs: bool = False

    @property
    def n(self) -> int:
        """How many prompts were evaluated."""
        return len(self.tried)

    @property
    def accuracy(self) -> float:
        """The share of attempts that are right."""
        return self.metrics[f"{self.name}/accuracy"]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy."""
        return self.metrics[f"{self.name}/accuracy/low"], self.metrics[f"{self.name}/accuracy/high"]


async def evaluate(
    parts: Parts,
    eval_set: EvalSet,
    *,
    phase: str = "main",
    step: int = 0,
    steps: int | None = None,
    fleet: Fleet | None = None,
) -> EvalResult:
    """Evaluate the weights that ``fleet`` (None: the run's rollers) holds on a set of a phase, after ``step`` of
    ``steps`` steps.

    A reward that fails ends it with RewardError, or under the policy ``drop`` leaves the prompt out, counted.
    """
    if eval_set.pairs is not None:
        return await _evaluate_pairs(parts, eval_set, eval_set.pairs)
    rollers = fleet or parts.rollers
    room = asyncio.Semaphore(max(1, IN_FLIGHT // eval_set.n))

    async def attempt(index: int) -> Tried | None:
        async with room:
            return await rollers.try_one((phase, eval_set.name), index, step, steps)

    found = await together([attempt(index) for index in range(len(eval_set.prompts))])
    tried = tuple(t for t in found if t is not None)
    if not tried:
        raise RewardError(
            f"evaluation {eval_set.name!r} has no attempt with a reward, so an accuracy would be wrong. "
            "Give a reward that applies to its prompts."
        )
    dropped = len(found) - len(tried)
    return EvalResult(
        name=eval_set.name,
        attempts=eval_set.n,
        greedy=eval_set.sampling.temperature == 0,
        tried=tried,
        dropped=dropped,
        metrics=_metrics(eval_set, tried, dropped),
    )


async def _evaluate_pairs(parts: Parts, eval_set: EvalSet, judge: PairJudge) -> EvalResult:
    """Which of its two answers every prompt's better one is found to be. Equal ones count as half."""
    async with parts.colocation.scoring():
        rewards_P2 = await pair_rewards(parts.learners, judge, parts.tokenizer, eval_set.prompts)
    margins_P = rewards_P2[:, 0] - rewards_P2[:, 1]
    right = ((margins_P > 0) + 0.5 * (margins_P == 0)).tolist()
    low, high = interval(right, 1)
    metrics = {
        "accuracy": sum(right) / len(right),
        "accuracy/low": low,
        "accuracy/high": high,
        "reward": float(margins_P.mean()),
        "pairs": float(len(right)),
        "dropped": 0.0,
    }
    return EvalResult(
        name=eval_set.name,
        attempts=1,
        greedy=False,
        tried=tuple(_preferred(p, score) for p, score in zip(eval_set.prompts, right, strict=True)),
        dropped=0,
        metrics={f"{eval_set.name}/{name}": value for name, value in metrics.items()},
        pairs=True,
    )


def _preferred(prompt: Prompt, score: float) -> Tried:
    """A prompt with the one of its answers that was found better."""
    text = "neither" if score == 0.5 else str(prompt.data["chosen" if score else "rejected"])
    return Tried(prompt=prompt, attempts=(Attempt(text=text, finish="stop", reward=score, score=score),))


def _metrics(eval_set: EvalSet, tried: Sequence[Tried], dropped: int) -> dict[str, float]:
    n = eval_set.n
    attempts = [attempt for t in tried for attempt in t.attempts]
    right = [sum(a.score >= eval_set.full_mark for a in t.attempts) for t in tried]
    accuracy = sum(right) / len(attempts)
    low, high = interval(right, n)
    metrics = {
        "accuracy": accuracy,
        "accuracy/low": low,
        "accuracy/high": high,
        "reward": sum(a.reward for a in attempts) / len(attempts),
        "truncated": sum(a.finish == "length" for a in attempts) / len(attempts),
        "dropped": float(dropped),
    }
    if n > 1:
        metrics[f"avg@{n}"] = accuracy
        for k in powers(n):
            metrics[f"pass@{k}"] = sum(pass_at(k, n, c) for c in right) / len(tried)
        metrics[f"maj@{n}"] = sum(_majority_is_right(eval_set, t) for t in tried) / len(tried)
    return {f"{eval_set.name}/{name}": value for name, value in metrics.items()}


def _majority_is_right(eval_set: EvalSet, tried: Tried) -> bool:
    winner = majority([_vote(eval_set, attempt.text) for attempt in tried.attempts])
    return winner is not None and tried.attempts[winner].score >= eval_set.full_mark


def _vote(eval_set: EvalSet, text: str) -> str | None:
    """The answer in a text: what the last match of ``vote`` holds, None without a match; without ``vote`` the text."""
    if eval_set.vote is None:
        return text.strip()
    last = None
    for match in eval_set.vote.finditer(text):
        last = match.group(1) if eval_set.vote.groups else match.group()
    return None if last is None else last.strip()
