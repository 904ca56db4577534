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


@pytest.mark.parametrize("how", ["a task", "a thread"])
@pytest.mark.parametrize("what", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_close_that_raises_no_exception_keeps_no_other_from_closing(how, what):
    closed: list[str] = []

    async def in_task() -> None:
        raise what

    def in_thread() -> None:
        raise what

    async def main() -> None:
        async with Disposer() as disposer:
            disposer.own("first", 1, lambda: closed.append("first"))
            disposer.own("bad", 1, in_task if how == "a task" else in_thread)

    with pytest.raises(RunError, match="bad failed to close"):
        asyncio.run(main())
    assert closed == ["first"]


def test_a_close_that_holds_on_when_it_is_given_up_is_left_behind():
    closed: list[str] = []
    begin = time.monotonic()

    async def stubborn() -> None:
        while time.monotonic() < begin + 5:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        async with Disposer() as disposer:
            disposer.own("first", 1, lambda: closed.append("first"))
            disposer.own("stubborn", 1, stubborn, deadline_s=0.1)

    loop = asyncio.new_event_loop()
    with pytest.raises(RunError, match=r"stubborn did not close within 0\.1 s"):
        loop.run_until_complete(main())
    assert closed == ["first"]
    loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
    loop.close()


def test_a_cancellation_while_all_closes_is_not_lost():
    closed: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.1)
        closed.append("slow")

    async def work(closing: asyncio.Event) -> None:
        async with Disposer() as disposer:
            disposer.own("slow", 1, slow)
            closing.set()

    async def main() -> None:
        closing = asyncio.Event()
        task = asyncio.create_task(work(closing))
        await closing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert closed == ["slow"]
