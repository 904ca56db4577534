"""Has the recipe's own judge score made answers: once, again under other draws, and in another process.

Owns the passes and the time they may take. What the scores mean is in ``rewards.py``. A reward that fails is told
apart from one that pays nothing: a failure has no score.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import stretto
from stretto.api.audit.answers import DRESSED, Answer, Writer, group_of
from stretto.config.rewards import RewardConfig
from stretto.environments.judge import RewardJudge
from stretto.errors import ConfigError, RewardError
from stretto.runtime.build import Job
from stretto.runtime.disposer import Disposer
from stretto.types import Group

__all__ = ["Fault", "Scored", "Scores", "fault_of", "score_answers"]

_TIMED = 8
"""Groups of the recipe's size that are judged for their time."""
_LATE = "no answer within"
"""What the judge says of a reward that met its timeout."""
_PLAYED = "the environment "
"""How errors of episodes begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A reward that gave no score, or an environment (``played``) that failed. ``where``: the line that raised."""

    what: str
    where: str
    late: bool
    played: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What one group got: a reward for every sibling, with its ``parts`` by name, or a fault."""

    rewards: tuple[float, ...]
    parts: tuple[Mapping[str, float | None], ...] = ()
    fault: Fault | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """The passes over ``answers``, by an answer's index. ``late``: it ended for want of time.

    first: alone in a group. again: the same under another draw and in another order. elsewhere: the same draw in
    another process. mixed: siblings of one group by their indices, for the time a group takes. ``alone``: why there
    was no other process.
    """

    answers: Sequence[Answer]
    first: Mapping[int, Scored]
    again: Mapping[int, Scored]
    elsewhere: Mapping[int, Scored]
    mixed: Sequence[tuple[tuple[int, ...], Scored]]
    late: bool
    alone: str | None


async def score_answers(job: Job, answers: Sequence[Answer], writer: Writer, size: int, budget_s: float) -> Scores:
    """Score ``answers`` within about ``budget_s`` seconds: at least a first one, then as far as it goes.

    ``size``: siblings of a group that is timed. Raises ConfigError if the reward cannot be loaded.
    """
    deadline = time.perf_counter() + budget_s
    async with Disposer() as disposer:
        here, there, alone = await _judges(job.recipe.reward, job, disposer)
        order = range(len(answers))
        singles = [group_of([answer], i, writer) for i, answer in enumerate(answers)]
        first = await _pass(here, singles, order, deadline)
        late = len(first) < len(answers)
        sound = [i for i, scored in first.items() if answers[i].kind not in DRESSED]
        shifted = {i: group_of([answers[i]], i + len(answers), writer) for i in sound}
        again = await _pass(here, shifted, sound[::-1], deadline)
        mixed = await _mixed(here, answers, first, writer, size, deadline)
        hangs = any(scored.fault is not None and scored.fault.late for scored in first.values())
        elsewhere: Mapping[int, Scored] = {}
        if there is not None and not hangs:
            elsewhere = await _pass(there, singles, sound[1::2] + sound[::2], deadline)
    return Scores(answers=answers, first=first, again=again, elsewhere=elsewhere, mixed=mixed, late=late, alone=alone)


async def _judges(
    config: RewardConfig, job: Job, disposer: Disposer
) -> tuple[RewardJudge, RewardJudge | None, str | None]:
    """The judge of the recipe, one in another process, and why there is none.

    Where the recipe judges inside the run's process, that is the other one, and a process of its own comes first:
    only there does a reward that hangs meet a timeout.
    """
    try:
        here = await _open(config, max(1, config.workers), job, disposer)
    except ConfigError as error:
        if config.workers:
            raise
        return await _open(config, 0, job, disposer), None, str(error)
    return here, await _open(config, min(1, config.workers), job, disposer), None


async def _open(config: RewardConfig, workers: int, job: Job, disposer: Disposer) -> RewardJudge:
    own = config.model_copy(update={"on_error": "fail", "workers": workers})
    judge = RewardJudge(own, job.rewards)
    disposer.own("the reward processes", judge, judge.close, pids=lambda: judge.pids)
    await judge.start()
    return judge


async def _pass(
    judge: RewardJudge, groups: Mapping[int, Group] | Sequence[Group], order: Sequence[int], deadline: float
) -> dict[int, Scored]:
    """Score ``groups`` in ``order``, as many at a time as there are processes, until ``deadline``."""
    free = asyncio.Semaphore(max(1, len(judge.pids)))
    scored: dict[int, Scored] = {}

    async def one(index: int) -> None:
        async with free:
            if not scored or time.perf_counter() < deadline:
                scored[index] = await _score(judge, groups[index])

    await asyncio.gather(*(one(index) for index in order))
    return scored


async def _mixed(
    judge: RewardJudge,
    answers: Sequence[Answer],
    first: Mapping[int, Scored],
    writer: Writer,
    size: int,
    deadline: float,
) -> list[tuple[tuple[int, ...], Scored]]:
    """Whole groups of ``size``, of answers that do not fail alone: what a run asks of the judge at a time."""
    by_prompt: dict[int, list[int]] = {}
    for index, scored in first.items():
        if scored.fault is None:
            by_prompt.setdefault(answers[index].place, []).append(index)
    timed: list[tuple[tuple[int, ...], Scored]] = []
    for place in sorted(by_prompt)[:_TIMED]:
        if timed and time.perf_counter() > deadline:
            break
        known = by_prompt[place]
        chosen = tuple(known[i % len(known)] for i in range(size))
        timed.append((chosen, await _score(judge, group_of([answers[i] for i in chosen], place, writer))))
    return timed


async def _score(judge: RewardJudge, group: Group) -> Scored:
    start = time.perf_counter()
    try:
        judged = await judge.judge(group)
    except RewardError as error:
        return Scored(rewards=(), fault=fault_of(error), seconds=time.perf_counter() - start)
    rewards = tuple(t.reward for t in judged.trajectories if t.reward is not None)
    assert len(rewards) == len(group.trajectories), "a judge gives every sibling a reward, or raises"
    parts = tuple(t.rewards for t in judged.trajectories)
    return Scored(rewards=rewards, parts=parts, fault=None, seconds=time.perf_counter() - start)


def fault_of(error: RewardError) -> Fault:
    """What a judge raised, without its advice, which an audit words for itself, and the line it came from, if that is
    the user's: what is wrong with a returned value is found by a line of ours."""
    what = str(error)
    for advice in (". Fix the reward", ". Fix the environment", ". Under schedule"):
        what = what.partition(advice)[0]
    trace = [line.strip() for line in str(error.__cause__ or "").splitlines()]
    frames = [i for i, line in enumerate(trace) if line.startswith('File "')]
    ours = bool(frames) and trace[frames[-1]].startswith(f'File "{Path(stretto.__file__).parent}')
    line = trace[frames[-1] + 1] if frames and not ours and frames[-1] + 1 < len(trace) - 1 else ""
    return Fault(what=what, where=line, late=_LATE in what, played=what.startswith(_PLAYED))
