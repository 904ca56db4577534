"""Everything opened is closed, newest first, on every way out."""

import asyncio
import subprocess
import sys
import time

import pytest

from stretto.errors import RunError
from stretto.runtime.disposer import Disposer


def test_closes_in_reverse_order_and_once():
    closed: list[str] = []

    async def main() -> None:
        async with Disposer() as disposer:
            assert disposer.own("a", 1, lambda: closed.append("a")) == 1
            disposer.own("b", 2, lambda: closed.append("b"))

    asyncio.run(main())
    assert closed == ["b", "a"]


def test_the_first_cause_stays_on_top_and_failures_to_close_are_notes():
    closed: list[str] = []

    def bad() -> None:
        raise OSError("no space")

    async def main() -> None:
        async with Disposer() as disposer:
            disposer.own("first", 1, lambda: closed.append("first"))
            disposer.own("bad", 1, bad)
            raise KeyError("cause")

    with pytest.raises(KeyError, match="cause") as caught:
        asyncio.run(main())
    assert closed == ["first"]
    assert any("bad failed to close: OSError: no space" in n for n in caught.value.__notes__)


def test_a_failed_close_after_a_good_run_is_an_error():
    def bad() -> None:
        raise OSError("no space")

    async def main() -> None:
        async with Disposer() as disposer:
            disposer.own("bad", 1, bad)

    with pytest.raises(RunError, match="bad failed to close"):
        asyncio.run(main())


def test_a_close_that_hangs_is_abandoned_and_its_processes_killed():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    closed: list[str] = []

    async def hang() -> None:
        await asyncio.sleep(600)

    async def main() -> None:
        async with Disposer() as disposer:
            disposer.own("before", 1, lambda: closed.append("before"))
            disposer.own("child", child, hang, deadline_s=0.1, pids=lambda: [child.pid])

    with pytest.raises(RunError, match=r"child did not close within 0\.1 s"):
        asyncio.run(main())
    assert child.wait(timeout=20) == -9
    assert closed == ["before"]


def test_cancelled_twice_still_closes_everything():
    closed: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.2)
        closed.append("slow")

    async def work(started: asyncio.Event) -> None:
        async with Disposer() as disposer:
            disposer.own("first", 1, lambda: closed.append("first"))
            disposer.own("slow", 1, slow)
            started.set()
            await asyncio.sleep(600)

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(work(started))
        await started.wait()
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begin = time.monotonic()
    asyncio.run(main())
    assert closed == ["slow", "first"]
    assert time.monotonic() - begin < 60


def test_what_closed_in_order_has_nothing_killed():
    # after a good close a process id may be another's
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def main() -> None:
        async with Disposer() as disposer:
            disposer.own("closes well", 1, lambda: None, pids=lambda: [bystander.pid])

    try:
        asyncio.run(main())
        time.sleep(0.1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
