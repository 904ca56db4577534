"""What can be waited for and left: a request to stop ends work, and a thread that never ends keeps nobody."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from stretto.errors import Interrupted
from stretto.waiting import Lane, in_thread, unless_stopped


def test_work_that_ends_before_a_stop_gives_its_result():
    async def main() -> int:
        return await unless_stopped(asyncio.sleep(0.01, 3), asyncio.Event(), "stopped")

    assert asyncio.run(main()) == 3


def test_a_stop_cancels_the_work_and_waits_for_it():
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, stop.set)
        await unless_stopped(work(), stop, "stopped on purpose")

    with pytest.raises(Interrupted, match="stopped on purpose"):
        asyncio.run(main())
    assert ended == ["work"]


def test_what_work_raises_comes_out_also_beside_a_stop():
    async def work() -> None:
        raise KeyError("mine")

    async def main() -> None:
        await unless_stopped(work(), asyncio.Event(), "stopped")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())


def test_a_lane_runs_in_order_on_one_thread_and_hands_over_what_is_raised():
    lane, seen = Lane("stretto-lane"), []

    def note(number: int) -> str:
        seen.append(number)
        if number == 2:
            raise SystemExit(7)
        return threading.current_thread().name

    futures = [lane.submit(lambda n=n: note(n)) for n in range(4)]
    assert [f.result(10) for f in futures if f is not futures[2]] == ["stretto-lane"] * 3
    assert isinstance(futures[2].exception(10), SystemExit)
    lane.close()
    lane.join()
    assert seen == [0, 1, 2, 3]
    assert not [t for t in threading.enumerate() if t.name == "stretto-lane"]
    with pytest.raises(AssertionError, match="is closed"):
        lane.submit(lambda: None)


def test_a_lane_that_did_nothing_has_no_thread():
    lane = Lane("stretto-idle")
    lane.close()
    lane.join()


def test_what_nobody_waits_for_any_more_is_not_begun():
    lane, seen = Lane("stretto-lane"), []
    first = lane.submit(lambda: time.sleep(0.1))
    second = lane.submit(lambda: seen.append(2))
    assert second.cancel()
    lane.close()
    lane.join()
    assert first.done() and seen == []


NEVER_ENDS = """
import asyncio, time
from stretto.api.host import host
from stretto.runtime.disposer import Disposer
from stretto.runtime.worker import Worker

async def main(stop):
    async with Disposer() as disposer:
        worker = Worker()
        disposer.own("the learner", worker, worker.close, deadline_s=0.2)
        disposer.own("a thread", 1, lambda: time.sleep(1000), deadline_s=0.2)
        asyncio.ensure_future(worker.call(time.sleep, 1000))
        await asyncio.sleep(0.1)
        raise KeyError("the cause")

try:
    host(main)
except KeyError as cause:
    print(cause, *cause.__notes__, sep="\\n")
"""


def test_threads_that_never_end_keep_no_process():  # pitfalls 32, 34
    """Closes of threads are late: they are left behind, and the process ends with the cause."""
    out = subprocess.run([sys.executable, "-c", NEVER_ENDS], capture_output=True, text=True, timeout=60)
    assert out.stdout.splitlines() == [
        "'the cause'",
        "a thread did not close within 0.2 s; its processes were killed.",
        "the learner did not close within 0.2 s; its processes were killed.",
    ]
    assert (out.returncode, out.stderr) == (0, "")


def test_a_function_in_a_thread_gives_its_result_or_what_it_raises():
    def fails() -> None:
        raise OSError("mine")

    assert asyncio.run(in_thread(lambda: threading.current_thread().daemon, "stretto-one"))
    with pytest.raises(OSError, match="mine"):
        asyncio.run(in_thread(fails, "stretto-one"))
