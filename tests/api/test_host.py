"""A coroutine on a loop of its own thread: its result, its failure, and signals at any time."""

import asyncio
import os
import signal
import time

import pytest

from stretto.api.host import host


def test_what_it_returns_and_what_it_raises():
    async def main(stop: asyncio.Event) -> int:
        return 3

    async def fails(stop: asyncio.Event) -> int:
        raise KeyError("mine")

    assert host(main) == 3
    with pytest.raises(KeyError, match="mine"):
        host(fails)


def test_a_signal_asks_to_stop_and_handlers_are_put_back(capsys):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    async def main(stop: asyncio.Event) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 30)
        return "stopped"

    assert host(main) == "stopped"
    assert "Stopping" in capsys.readouterr().err
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_when_all_is_done_changes_nothing():
    # pitfall 34: the run was done, so its status is that of a run that is done
    async def main(stop: asyncio.Event) -> str:
        loop = asyncio.get_running_loop()
        close = loop.close

        def closed() -> None:
            close()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

        loop.close = closed  # pyright: ignore[reportAttributeAccessIssue]
        return "done"

    assert host(main) == "done"


def test_what_is_left_on_the_loop_ends_before_it_is_closed():
    """Tasks that nobody waited for are cancelled, as by asyncio.run; so is ``main``, if an exit broke the loop off."""
    ended: list[str] = []

    async def sleeps(name: str) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    tasks: list[asyncio.Task[None]] = []

    async def forgets(stop: asyncio.Event) -> int:
        tasks.append(asyncio.ensure_future(sleeps("left")))
        await asyncio.sleep(0)
        return 3

    async def exits(stop: asyncio.Event) -> None:
        def leave() -> None:
            raise SystemExit(7)

        asyncio.get_running_loop().call_soon(leave)
        await sleeps("main")

    assert host(forgets) == 3
    with pytest.raises(SystemExit):
        host(exits)
    assert ended == ["left", "main"]
