"""Questions in few messages: every one is answered once, whatever the delays; what is given up is given up there."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import EngineError
from stretto.runtime.remote.asking import Answering, Asking


class Wire:
    """Both sides in one loop; what goes over it is counted."""

    def __init__(self, answer) -> None:
        self.answering = Answering(answer)
        self.messages: list[int] = []
        self.left: list[int] = []
        self.broken: Exception | None = None
        self.asking = Asking(self.send, self.give_up, self.poll)

    def send(self, asked) -> None:
        self.messages.append(len(asked))
        self.answering.begin(asked)

    def give_up(self, numbers) -> None:
        self.left += numbers
        self.answering.give_up(numbers)

    async def poll(self):
        if self.broken is not None:
            raise self.broken
        return await self.answering.finished()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 2**32))
def test_every_question_has_its_answer(delays, seed):
    rng = random.Random(seed)

    async def answer(what, args):
        (number, delay) = args
        await asyncio.sleep(delay / 2000)
        if delay == 3:
            raise EngineError(f"no {number}")
        return what, number

    async def main():
        wire = Wire(answer)

        async def ask(number, delay):
            await asyncio.sleep(rng.random() / 1000)
            return await wire.asking.ask("w", number, delay)

        found = await asyncio.gather(*(ask(n, d) for n, d in enumerate(delays)), return_exceptions=True)
        for number, (delay, result) in enumerate(zip(delays, found, strict=True)):
            if delay == 3:
                assert str(result) == f"no {number}"
            else:
                assert result == ("w", number)
        await wire.answering.close()

    asyncio.run(main())


def test_questions_of_one_turn_are_one_message():
    async def answer(what, args):
        return args[0]

    async def main():
        wire = Wire(answer)
        assert await asyncio.gather(*(wire.asking.ask("w", n) for n in range(50))) == list(range(50))
        assert wire.messages == [50]
        assert await wire.asking.ask("w", 7) == 7
        assert wire.messages == [50, 1]

    asyncio.run(main())


def test_what_is_cancelled_is_given_up_there_and_nowhere_else():
    ended = []

    async def answer(what, args):
        try:
            await asyncio.sleep(args[1])
        except asyncio.CancelledError:
            ended.append(args[0])
            raise
        return args[0]

    async def main():
        wire = Wire(answer)
        tasks = [asyncio.ensure_future(wire.asking.ask("w", n, 0.02 if n else 60)) for n in range(3)]
        await asyncio.sleep(0.005)
        tasks[0].cancel()
        assert await asyncio.gather(*tasks[1:]) == [1, 2]
        await asyncio.sleep(0.01)
        assert (ended, wire.left) == ([0], [1]) and wire.messages == [3]

    asyncio.run(main())


def test_when_the_actor_is_gone_everybody_hears_it():
    async def answer(what, args):
        await asyncio.sleep(60)

    async def main():
        wire = Wire(answer)
        wire.broken = EngineError("the actor died")
        found = await asyncio.gather(*(wire.asking.ask("w", n) for n in range(3)), return_exceptions=True)
        assert [str(error) for error in found] == ["the actor died"] * 3
        with pytest.raises(EngineError, match="the actor died"):
            await wire.asking.ask("w", 4)  # also who asks later
        await wire.answering.close()

    asyncio.run(main())
