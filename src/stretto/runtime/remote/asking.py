"""Many small questions to an actor in few messages: those of one turn of the loop go together, and so do answers.

    driver   ask(what, ...) ──▶ gathered until the loop turns ──▶ actor.begin([...])
    actor    a task each ──▶ finished ones are gathered ──▶ actor.finished() gives them, as soon as there is one

So what a draw costs the driver is a line in a message, whatever it costs the actor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "Answering", "Asked", "Asking"]

LINGER_S = 0.002
"""How long answers are gathered after the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question: its number, the name of what answers it, and with what."""

    number: int
    what: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of question ``number``."""

    number: int
    value: Any = None
    failure: BaseException | None = None


class Answering:
    """The actor's side: answers questions by ``answer``, each in a task of its own."""

    def __init__(self, answer: Callable[[str, tuple[Any, ...]], Awaitable[Any]]) -> None:
        self._answer = answer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._done: list[Answer] = []
        self._some = asyncio.Event()

    @property
    def num_open(self) -> int:
        """How many are under way."""
        return len(self._tasks)

    def begin(self, asked: Sequence[Asked]) -> None:
        """Begin to answer these."""
        for one in asked:
            self._tasks[one.number] = asyncio.get_running_loop().create_task(self._run(one))

    def give_up(self, numbers: Sequence[int]) -> None:
        """Nobody waits for these any more."""
        for number in numbers:
            if (task := self._tasks.get(number)) is not None:
                task.cancel()

    async def finished(self) -> list[Answer]:
        """What is answered since the last time; at least one answer."""
        await self._some.wait()
        await asyncio.sleep(LINGER_S)
        self._some.clear()
        done, self._done = self._done, []
        return done

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, asked: Asked) -> None:
        try:
            answer = Answer(number=asked.number, value=await self._answer(asked.what, asked.args))
        except asyncio.CancelledError:
            return
        except BaseException as failure:  # noqa: BLE001 - it belongs to who asked
            answer = Answer(number=asked.number, failure=failure)
        finally:
            del self._tasks[asked.number]
        self._done.append(answer)
        self._some.set()


class Asking:
    """The driver's side. ``send``, ``give_up`` and ``poll`` are the actor's ``begin``, ``give_up`` and ``finished``.

    A poll that fails (the actor is gone) fails every question that is open.
    """

    def __init__(
        self,
        send: Callable[[list[Asked]], object],
        give_up: Callable[[list[int]], object],
        poll: Callable[[], Awaitable[list[Answer]]],
    ) -> None:
        self._send, self._give_up, self._poll = send, give_up, poll
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._gathered: list[Asked] = []
        self._left: list[int] = []
        self._polling: asyncio.Task[None] | None = None
        self._number = 0

    async def ask(self, what: str, *args: Any) -> Any:
        """The answer, or what was raised in its place. Cancelling it gives the question up."""
        loop = asyncio.get_running_loop()
        self._number += 1
        number, future = self._number, loop.create_future()
        self._open[number] = future
        self._later()
        self._gathered.append(Asked(number=number, what=what, args=args))
        try:
            return await future
        except asyncio.CancelledError:
            if self._open.pop(number, None) is not None:
                self._later()
                self._left.append(number)
            raise

    def _later(self) -> None:
        """See that what is gathered is sent when the loop turns."""
        if not self._gathered and not self._left:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        gathered, left = self._gathered, self._left
        self._gathered, self._left = [], []
        if gathered:
            self._send(gathered)
        if left:
            self._give_up(left)
        if self._open and (self._polling is None or self._polling.done()):
            self._polling = asyncio.get_running_loop().create_task(self._take(), name="answers")

    async def _take(self) -> None:
        try:
            while self._open:
                for answer in await self._poll():
                    future = self._open.pop(answer.number, None)
                    if future is None or future.done():
                        continue
                    if answer.failure is not None:
                        future.set_exception(answer.failure)
                    else:
                        future.set_result(answer.value)
        except Exception as failure:  # noqa: BLE001 - it belongs to all who wait
            open, self._open = self._open, {}
            for future in open.values():
                if not future.done():
                    future.set_exception(failure)
