"""Workers that die or stall: draws go to others, what died is started again, and the bits are those of a quiet run."""

import signal
import subprocess
import sys

import psutil
import pytest
from leftovers import gone, nothing_left
from small_runs import recipe

from stretto.api.runs import resume, start
from stretto.errors import WorkerLost
from stretto.store import GroupBody, RunView
from stretto.store.compare import compare_runs

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A run of one process that nobody disturbs."""
    return start(recipe(tmp_path_factory.mktemp("quiet"), "run", schedule={"max_staleness": 1}))


def on_ray(folder, rollers=2, **cluster):
    return recipe(
        folder,
        "run",
        schedule={"max_staleness": 1},
        cluster={"type": "ray", "heartbeat_s": 0.2, **cluster},
        placement={"rollers": rollers},
    )


def workers(kind):
    """The processes of this one's actors of a kind, oldest first."""
    children = psutil.Process().children(recursive=True)
    return sorted((c for c in children if c.name().startswith(f"ray::{kind}")), key=lambda c: c.create_time())


def when(kind, step, act):
    """An observer that acts once, at the first event of a kind in a step."""
    done = []

    def observer(event):
        if (event.kind, event.step, event.phase) == (kind, step, "main") and not done:
            done.append(True)
            act()

    return observer


def send(number, kind, place=0):
    return lambda: workers(kind)[place].send_signal(number)


def each_draw_once(view: RunView) -> bool:
    """The ledger: every draw of every step was finished, and trained on once."""
    finished = [e.body.draw for e in view.events if isinstance(e.body, GroupBody) and e.body.state == "finished"]
    taken = sum(int(value) for _, value in view.history("batch/groups"))
    return sorted(finished) == list(range(16)) and taken == 16


@pytest.mark.parametrize(
    ("number", "at"),
    [
        (signal.SIGKILL, "group"),
        pytest.param(signal.SIGKILL, "publish", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "group", marks=pytest.mark.slow),
    ],
)
def test_a_roller_that_is_lost_loses_no_draw(number, at, tmp_path, quiet):
    with nothing_left(files=False):
        view = start(on_ray(tmp_path, stall_s=8), observer=when(at, 2, send(number, "Roller")))
    assert view.status == "done" and each_draw_once(view)
    assert compare_runs(quiet.path, view.path) == []
    assert len({e.attempt for e in view.all_events}) == 1
    assert {g.by for g in view.groups()} >= {"roller-1"}


@pytest.mark.slow
def test_the_only_roller_comes_back(tmp_path, quiet):
    view = start(on_ray(tmp_path, rollers=1), observer=when("group", 2, send(signal.SIGKILL, "Roller")))
    assert view.status == "done" and each_draw_once(view)
    assert compare_runs(quiet.path, view.path) == []


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGKILL, "it died"),
        pytest.param(signal.SIGSTOP, "has not answered for", marks=pytest.mark.slow),
    ],
)
def test_a_learner_that_is_lost_is_started_again_from_the_newest_checkpoint(number, told, tmp_path, quiet):
    # pitfall 32
    with nothing_left(files=False):
        view = start(on_ray(tmp_path, stall_s=8), observer=when("step", 2, send(number, "Learner")))
    assert view.status == "done" and each_draw_once(view)
    assert compare_runs(quiet.path, view.path) == []
    assert len({e.attempt for e in view.all_events}) == 2
    (error,) = view.errors()
    assert error.type == "WorkerLost" and "learner-0 (process" in error.message and told in error.message


@pytest.mark.slow
def test_without_restarts_a_lost_learner_is_the_end_and_is_named(tmp_path):
    with (
        nothing_left(files=False),
        pytest.raises(WorkerLost, match=r"learner-0 \(process \d+ on this machine\) was lost"),
    ):
        start(on_ray(tmp_path, restarts=0), observer=when("step", 1, send(signal.SIGKILL, "Learner")))


def test_a_driver_that_is_killed_leaves_no_process_and_the_run_goes_on(tmp_path, quiet):  # pitfall 31
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        f"sys.path[:0] = {[p for p in sys.path if p]!r}\n"
        "from tests.runtime.remote.test_faults import on_ray, when\n"
        "from stretto.api.runs import start\n"
        "import psutil\n"
        "def die():\n"
        "    print(*[c.pid for c in psutil.Process().children(recursive=True)], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"start(on_ray(Path({str(tmp_path)!r})), observer=when('step', 2, die))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = [psutil.Process(int(pid)) for pid in ended.stdout.split() if psutil.pid_exists(int(pid))]
    view = resume(tmp_path / "run")
    assert view.status == "done" and each_draw_once(view)
    assert compare_runs(quiet.path, view.path) == []
    assert gone(left)
