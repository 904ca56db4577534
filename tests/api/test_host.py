"""A coroutine on a loop of its own thread: its result, its failure, and signals at any time."""

import asyncio
import os
import signal
import threading
import time

import pytest

from stretto.api.host import here, host
from stretto.errors import ConfigError


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


def test_here_is_the_calling_thread_with_its_own_signals():
    before = signal.getsignal(signal.SIGINT)

    async def main() -> tuple[threading.Thread, object]:
        return threading.current_thread(), signal.getsignal(signal.SIGINT)

    assert here(main) == (threading.current_thread(), before)

    async def inside() -> None:
        here(main)

    with pytest.raises(ConfigError, match="an event loop runs in this thread already, as in a notebook"):
        asyncio.run(inside())


@pytest.mark.parametrize("waits", [True, False])
def test_an_interrupt_here_comes_through_once_all_is_closed(waits, request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which workers of the tests ignore
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    closed: list[str] = []

    async def main() -> None:
        try:
            if waits:
                asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
                await asyncio.sleep(30)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    with pytest.raises(KeyboardInterrupt):
        here(main)
    assert closed == ["closed"]
