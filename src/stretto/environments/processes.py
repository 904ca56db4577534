"""A reward process as its parent sees it: asked about one group at a time, killed when it is late.

Owns what is said to one child. It does not own how a child is started and killed (``launching.py``), which process
judges what (``judge.py``) or what the child does (``worker.py``).
"""

import asyncio
import pickle
from dataclasses import replace

from stretto.environments.faults import Fault
from stretto.environments.launching import NAMELESS, START_S, Child, Launch, receive_message, send_message
from stretto.environments.rewards.contract import Answer
from stretto.environments.worker import decode_answer
from stretto.errors import ConfigError
from stretto.types import Group, Occasion

__all__ = ["Launch", "RewardProcess"]


class RewardProcess:
    """One child process. Used by one task at a time, on one event loop.

    After ``ask`` reports a timeout or a death, and after ``kill``, there is no process until the next ``start``.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._child: Child | None = None
        self._late = False

    @property
    def pid(self) -> int | None:
        """The child's process id, which is its process group too; None without a child."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the child and wait until it holds the reward. Raises ConfigError with the child's reason."""
        assert self._child is None
        self._child = Child(self._launch)
        answer = await self._exchange(self._launch.payload, START_S)
        if isinstance(answer, Fault):
            self.kill()
            raise ConfigError(
                f"the reward {self._launch.name!r} cannot be loaded in a reward process ({answer.cause}). Its module "
                "must be importable by name there, or be the script or notebook itself."
            )

    async def ask(self, group: Group, occasion: Occasion, timeout_s: float) -> Answer | Fault:
        """The scores of ``group`` on ``occasion`` within ``timeout_s``, or why there are none.

        Cancelling kills the child.
        """
        answer = await self._exchange(pickle.dumps((group, occasion), protocol=pickle.HIGHEST_PROTOCOL), timeout_s)
        if not isinstance(answer, Fault):
            return answer
        named = (told.replace(NAMELESS, self._launch.file) for told in (answer.cause, answer.traceback))
        return replace(answer, cause=next(named), traceback=next(named))

    def kill(self) -> None:
        """Kill the child and its process group, and forget it. Does nothing without one."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def abandon(self) -> None:
        """Kill the child of a task that waits for it; the task is told so and forgets the child."""
        if self._child is not None:
            self._child.abandon()

    async def leave(self) -> None:
        """Let an idle child end by itself, for a moment, then ``kill``."""
        child, self._child = self._child, None
        if child is not None:
            await child.leave()

    async def _exchange(self, message: bytes, timeout_s: float) -> Answer | Fault:
        """Send one message and wait for its answer. The child is killed at the deadline, which ends the wait.

        Not a timeout on the wait itself: an answer that is there already counts, however late this loop comes to it.
        """
        child = self._child
        assert child is not None
        self._late = False
        timer = asyncio.get_running_loop().call_later(timeout_s, self._give_up)
        try:
            await send_message(child.link, message)
            answer = decode_answer(await receive_message(child.link))
        except (EOFError, ConnectionError):
            self.kill()
            return Fault(cause=f"no answer within {timeout_s:g} s" if self._late else child.ending, lost=True)
        except BaseException:
            self.kill()
            raise
        finally:
            timer.cancel()
        if self._late:
            self.kill()
        return answer

    def _give_up(self) -> None:
        self._late = True
        self.abandon()
