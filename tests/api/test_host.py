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
