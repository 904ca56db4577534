"""The judge of a run: rewards for whole groups, in reward processes, and what follows when there are none.

Owns the processes, which of them judges what, and the failure policies ``fail``, ``retry`` and ``drop``. A group goes
to a process whole; as many groups are judged at a time as there are processes. Results depend on the group alone,
never on which process judged it or what finished first.
"""

import asyncio
import inspect
from dataclasses import dataclass

from stretto.config.rewards import RewardConfig
from stretto.environments.faults import Fault
from stretto.environments.processes import Launch, RewardProcess
from stretto.environments.rewards.calling import call_rewards, read_answer, settle
from stretto.environments.rewards.contract import Answer, Reward, Rewards
from stretto.environments.rewards.resolve import resolve_rewards
from stretto.errors import ConfigError, RewardError, StrettoError
from stretto.types import Group, Occasion

__all__ = ["GroupDropped", "JudgeReport", "RewardJudge"]

_MIN_JUDGED = 10
"""Groups judged before the share of dropped ones can end a run: one of two says little."""


class GroupDropped(StrettoError):
    """A group has no rewards and the policy is to draw another in its place. ``why`` is the failure."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class RemoteTraceback(Exception):
    """The traceback of a reward, as text, as the cause of a RewardError."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    """What a judge has met: groups judged (dropped ones too) and dropped, failed attempts, and the first failure."""

    judged: int
    dropped: int
    failures: int
    first_failure: str | None


class RewardJudge:
    """Judges groups by a recipe's rewards. Belongs to one event loop, which may run in any thread.

    ``reward``: what was resolved already, or a function to use in place of the one ``config.use`` names, or None. A
    wrong name or signature raises ConfigError here. ``deterministic``: a late or dead process fails the run even under
    ``drop``, since what is dropped would depend on the day. With ``config.workers`` 0 the rewards run on the event loop
    itself, without a timeout.
    """

    def __init__(
        self, config: RewardConfig, reward: Rewards | Reward | None = None, *, deterministic: bool = False
    ) -> None:
        self._config = config
        self._rewards = reward if isinstance(reward, Rewards) else resolve_rewards(config, reward)
        self._deterministic = deterministic
        self._processes: tuple[RewardProcess, ...] = ()
        self._idle: asyncio.Queue[RewardProcess] = asyncio.Queue()
        self._closed = False
        self._judged = self._dropped = self._failures = 0
        self._first_failure: str | None = None
        if config.workers > 0:
            launch = Launch.of(self.name, self._rewards, shown=self._rewards.parts[0].function)
            self._processes = tuple(RewardProcess(launch) for _ in range(config.workers))
            for process in self._processes:
                self._idle.put_nowait(process)

    @property
    def name(self) -> str:
        """The name of the reward, or of all of them."""
        return self._rewards.name

    @property
    def pids(self) -> tuple[int, ...]:
        """The reward processes that live now, each the leader of its own process group."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    @property
    def report(self) -> JudgeReport:
        """What has happened so far, in this process (a resumed run counts anew)."""
        return JudgeReport(
            judged=self._judged,
            dropped=self._dropped,
            failures=self._failures,
            first_failure=self._first_failure,
        )

    async def start(self) -> None:
        """Start every process and wait until each holds the reward. ConfigError if it cannot be loaded there.

        Called twice, it starts what is missing. Not called, the first group of each process waits for its start.
        """
        if not self._processes:
            self._rewards.warm()
        missing = [process for process in self._processes if process.pid is None]
        results = await asyncio.gather(*(process.start() for process in missing), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                await self.close()
                raise result

    async def close(self) -> None:
        """End every process; a group being judged raises RewardError. Idempotent."""
        self._closed = True
        idle: list[RewardProcess] = []
        while not self._idle.empty():
            idle.append(self._idle.get_nowait())
        for process in self._processes:
            if process not in idle:
                process.abandon()
        await asyncio.gather(*(process.leave() for process in idle))
        for process in idle:
            self._idle.put_nowait(process)

    async def judge(self, group: Group, occasion: Occasion = Occasion()) -> Group:
        """The group with ``rewards`` and ``reward`` of every trajectory set.

        A failure raises RewardError, or GroupDropped under ``drop`` until more than ``max_dropped`` of the groups
        judged so far (at least 10) were dropped.
        """
        attempts = 1 + (self._config.retries if self._config.on_error == "retry" else 0)
        why, fault = "", Fault(cause="")
        # Parts of an attempt are judged once, by the last, and share its rewards.
        shown = Group(draw=group.draw, prompt=group.prompt, trajectories=group.attempts)
        for _ in range(attempts):
            answer = await self._attempt(shown, occasion)
            if not isinstance(answer, Fault):
                self._judged += 1
                return self._with_rewards(group, shown, answer)
            fault = answer
            why = self._describe(group, fault)
            self._failures += 1
            self._first_failure = self._first_failure or why
        self._judged += 1
        raise self._verdict(why, fault) from (RemoteTraceback(fault.traceback) if fault.traceback else None)

    async def _attempt(self, group: Group, occasion: Occasion) -> Answer | Fault:
        self._check_open()
        if not self._processes:
            return await self._judge_here(group, occasion)
        process = await self._idle.get()
        try:
            self._check_open()
            if process.pid is None:
                await process.start()
            answer = await process.ask(group, occasion, self._config.timeout_s)
        except ConfigError as error:
            self._check_open()
            # The reward was loaded at the start of the run, so this is not about the recipe any more.
            raise RewardError(str(error)) from error
        finally:
            self._idle.put_nowait(process)
        self._check_open()
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise RewardError("a group was to be judged after the rewards were closed. The run is over; resume it.")

    async def _judge_here(self, group: Group, occasion: Occasion) -> Answer | Fault:
        called = call_rewards(self._rewards, group, occasion)
        if not isinstance(called, Fault) and any(inspect.isawaitable(v) for calls in called for v in calls.values):
            called = await settle(self._rewards, called, group)
        return called if isinstance(called, Fault) else read_answer(self._rewards, called, group)

    def _with_rewards(self, group: Group, shown: Group, answer: Answer) -> Group:
        """``group`` with what ``shown``, the last part of every attempt, was given; notes are kept with that part."""
        total = self._rewards.total
        of = {(t.key.sample, t.key.model): scores for t, scores in zip(shown.trajectories, answer.rows, strict=True)}
        noted = {t.key: note for t, note in zip(shown.trajectories, answer.notes, strict=True)} if answer.notes else {}
        judged = tuple(
            t.judged(scores := of[t.key.sample, t.key.model], total(scores), noted.get(t.key))
            for t in group.trajectories
        )
        return Group(draw=group.draw, prompt=group.prompt, trajectories=judged)

    def _describe(self, group: Group, fault: Fault) -> str:
        sample = "" if fault.sample is None else f", sample {fault.sample}"
        text, uid = group.prompt.text, group.prompt.uid
        asks = "" if text.startswith(uid) else f", {text if len(text) <= 60 else text[:57] + '...'!r}"
        place = f"prompt {uid!r} (draw {group.draw}{sample}{asks})"
        return f"the reward {self.name!r} failed on {place}: {fault.cause.removesuffix('.')}"

    def _verdict(self, why: str, fault: Fault) -> RewardError | GroupDropped:
        """What a group without rewards raises, by the policy."""
        config = self._config
        remedy = "Fix the reward, raise reward.timeout_s" if fault.lost else "Fix the reward"
        if config.on_error == "retry":
            return RewardError(f"{why}, {config.retries + 1} times. {remedy}, or set reward.on_error=drop.")
        if config.on_error == "fail":
            return RewardError(f"{why}. {remedy}, or set reward.on_error=retry or drop.")
        if fault.lost and self._deterministic:
            return RewardError(
                f"{why}. Under schedule.deterministic=true a group is not dropped for this, since another day it might "
                "not be. Raise reward.timeout_s, set reward.on_error=retry, or schedule.deterministic=false."
            )
        self._dropped += 1
        if self._judged >= _MIN_JUDGED and self._dropped / self._judged > config.max_dropped:
            return RewardError(
                f"{self._dropped} of {self._judged} groups were dropped, more than reward.max_dropped="
                f"{config.max_dropped:g}. The first failure: {self._first_failure}. Fix the reward, or raise "
                "reward.max_dropped."
            )
        return GroupDropped(why)
