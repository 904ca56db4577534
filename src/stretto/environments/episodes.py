"""The environments of a run: which process an episode lives in, and a fresh one from the start when one fails.

Owns the processes and the failure policies ``fail``, ``retry`` and ``drop``. An attempt is begun again whole, with the
same seeds. What comes of an attempt depends on its prompt and seeds alone, never on where its environment lived.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from stretto.config.environments import EnvironmentConfig
from stretto.environments.contract import (
    Factory,
    Said,
    Stage,
    Verb,
    check_factory,
    environment_name,
    resolve_environment,
    said_of,
)
from stretto.environments.faults import Fault
from stretto.environments.judge import RemoteTraceback
from stretto.environments.launching import Launch
from stretto.environments.policy import FailurePolicy
from stretto.environments.sessions import SessionProcess, Swept
from stretto.errors import ConfigError, DataError, RewardError
from stretto.roles import Episode
from stretto.types import Json, Prompt

__all__ = ["Attempt", "EpisodeReport", "Episodes"]

T = TypeVar("T")

_MAX_SWEPT = 100
"""How often an attempt may lose its process to others before that is a failure of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempt:
    """Whose episode it is. ``seed`` of a turn (0 for the start) decides the random numbers of its call."""

    prompt: Prompt
    draw: int
    sample: int
    seed: Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeReport:
    """What has happened: groups begun and dropped, attempts that failed, and the first failure."""

    groups: int
    dropped: int
    failures: int
    first_failure: str | None


class _Failed(Exception):
    """An episode failed; for ``play`` only."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.cause)
        self.fault = fault


class _Gone(Exception):
    """An episode was swept away with its process; for ``play`` only."""


class Episodes:
    """Plays attempts against fresh environments. Belongs to one event loop, which may run in any thread.

    ``factory`` is the user's class, or None for the one that ``config.use`` names; a wrong name raises ConfigError.
    With ``config.workers`` 0 environments live on the event loop itself, without a timeout.
    """

    def __init__(
        self, config: EnvironmentConfig, factory: Factory | None = None, *, deterministic: bool = False
    ) -> None:
        self._config = config
        self._factory = resolve_environment(config.use) if factory is None else factory
        check_factory(config.use, self._factory)
        self._name = environment_name(self._factory)
        self._policy = FailurePolicy("environment", config, deterministic=deterministic)
        self._closed = False
        self._next = 0
        settings = config.settings
        self._stage = Stage(self._factory, settings) if config.workers == 0 else None
        self._processes: tuple[SessionProcess, ...] = ()
        if config.workers > 0:
            launch = Launch.of(
                self._name,
                (self._factory, settings),
                what="environment",
                module="stretto.environments.player",
                shown=self._factory,
            )
            self._processes = tuple(SessionProcess(launch) for _ in range(config.workers))

    @property
    def pids(self) -> tuple[int, ...]:
        """The environment processes that live now, each the leader of its own process group."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    @property
    def report(self) -> EpisodeReport:
        """What has happened so far, in this process (a resumed run counts anew)."""
        p = self._policy
        return EpisodeReport(groups=p.groups, dropped=p.dropped, failures=p.failures, first_failure=p.first_failure)

    async def start(self) -> None:
        """Start every process and wait until each holds the environment. ConfigError if it cannot be loaded there."""
        results = await asyncio.gather(*(process.start() for process in self._processes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                await self.close()
                raise result

    async def close(self) -> None:
        """End every process; an episode that is being played raises RewardError. Idempotent."""
        self._closed = True
        await asyncio.gather(*(process.leave() for process in self._processes))

    def group_begins(self) -> None:
        """A group's attempts are about to be played; the ceiling of dropped groups is a share of these."""
        self._policy.groups += 1

    async def play(self, attempt: Attempt, conversation: Callable[[Episode], Awaitable[T]]) -> T:
        """What ``conversation`` gives with a fresh environment for ``attempt``.

        If the environment fails, the policy says whether it is called again with another, or what is raised:
        RewardError, or GroupDropped. A DataError of the conversation is the environment's fault too: it said what
        cannot be read.
        """
        failed = swept = 0
        while True:
            self._next += 1
            episode = _Episode(self, attempt, self._next, self._least_busy())
            try:
                return await conversation(episode)
            except _Gone as gone:
                self._check_open()
                swept += 1
                if swept <= _MAX_SWEPT:
                    continue
                fault = Fault(cause=f"its process ended {swept} times ({gone})", lost=True)
            except _Failed as failure:
                self._check_open()
                fault = failure.fault
            except DataError as error:
                fault = Fault(cause=str(error))
            finally:
                episode.forget()
            failed += 1
            why = self._describe(attempt, episode.turn, fault)
            self._policy.note(why)
            if not self._policy.again(failed):
                cause = RemoteTraceback(fault.traceback) if fault.traceback else None
                raise self._policy.verdict(why, fault) from cause

    async def ask(self, episode: "_Episode", verb: Verb, argument: object) -> Json:
        """One call of an episode. Raises what only ``play`` sees."""
        self._check_open()
        seed = episode.attempt.seed(episode.turn)
        if episode.process is None:
            assert self._stage is not None
            answer = await self._stage.call(episode.id, verb, argument, seed)
        else:
            try:
                answer = await episode.process.call(episode.id, verb, argument, seed, self._config.timeout_s)
            except ConfigError as error:
                self._check_open()
                # It was loaded at the start of the run, so this is not about the recipe any more.
                raise RewardError(str(error)) from error
        self._check_open()
        if isinstance(answer, Swept):
            raise _Gone(answer.why)
        if isinstance(answer, Fault):
            raise _Failed(answer)
        return answer

    def let_go(self, episode: "_Episode") -> None:
        """An episode is over."""
        if episode.process is not None:
            episode.process.forget(episode.id)
        elif self._stage is not None:
            self._stage.forget(episode.id)

    def _least_busy(self) -> SessionProcess | None:
        return min(self._processes, key=lambda process: process.num_episodes, default=None)

    def _check_open(self) -> None:
        if self._closed:
            raise RewardError("an episode was played after the environments were closed. The run is over; resume it.")

    def _describe(self, attempt: Attempt, turn: int, fault: Fault) -> str:
        place = f"prompt {attempt.prompt.uid!r} (draw {attempt.draw}, sample {attempt.sample}, turn {turn})"
        return f"the environment {self._name!r} failed on {place}: {fault.cause.removesuffix('.')}"


class _Episode:
    """One fresh environment, as the conversation sees it. ``turn`` counts the replies it was asked for."""

    def __init__(self, owner: Episodes, attempt: Attempt, id: int, process: SessionProcess | None) -> None:
        self._owner, self.attempt, self.id, self.process = owner, attempt, id, process
        self.turn = 0

    async def start(self) -> Said:
        """Make the environment; what it says first."""
        return said_of(await self._owner.ask(self, "start", self.attempt.prompt))

    async def reply(self, text: str) -> Said:
        """Tell it what the policy wrote; what it says then, None at the end."""
        self.turn += 1
        return said_of(await self._owner.ask(self, "reply", text))

    async def end(self) -> Json:
        """Its score, a number or a dict of numbers by name, None if it has none. It is closed then."""
        self.turn += 1
        return await self._owner.ask(self, "end", None)

    def forget(self) -> None:
        """Let it go, whatever state it is in."""
        self._owner.let_go(self)
