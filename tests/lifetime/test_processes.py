"""Real runs of the command line meet signals, and processes of theirs are killed: the exit status and the one sentence
are true, nothing of them is left, and they go on.
"""

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from command_line import wait_for_step, wait_until
from leftovers import SHARED_MEMORY, family_of, gone, names_in, ports_of

from stretto.store import RunView, compare_runs
from stretto.store.lock import is_locked

FAKES = ["engine={type: fake, delay_s: 0.01}", "backend={type: fake, lr: 0.1}", "reward.workers=2"]
"""What starts soonest: only the processes are real."""
TRAINS = ["steps=60", "evaluate={at_start: false, at_end: false}"]
"""Training alone, since an evaluation that fails is recorded, and training goes on."""
WEIGHTS = ("weights.json", "*.safetensors")

HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"
"""What hides a terminal's cursor, and shows it."""

ECHO = """
class Echo:
    def __init__(self, prompt):
        self.left = 2

    def start(self):
        return "1"

    def reply(self, text):
        self.left -= 1
        return "2" if self.left else None

    def score(self):
        return 1.0
"""

WAITS_ONCE = """
        import os, time
        if self.left == 1 and not os.path.exists("waits"):
            open("waits", "w").close()
            time.sleep(5)
        self.left -= 1"""
"""In place of a line of ``reply``: the first second turn of all waits to be killed."""

ENVIRONMENT = [
    "environment.use=echo:Echo",
    "environment.on_length=reply",
    "environment.max_total_tokens=32",
    "reward.use=environment",
]


class Watch:
    """A command with all its processes as they were when it was looked at, and what lay in shared places before."""

    def __init__(self, process: subprocess.Popen[str], temporary: Path) -> None:
        self.process, self.temporary = process, temporary
        self.before = names_in(SHARED_MEMORY), names_in(temporary)
        self.family: list[psutil.Process] = []

    def look(self) -> None:
        """Remember its processes; none of them listens."""
        self.family = family_of(self.process.pid)
        assert ports_of(self.family) == frozenset()

    def child(self, module: str) -> psutil.Process:
        """One of its children, by what it runs."""
        return next(p for p in self.family if any(f"stretto.environments.{module}" in word for word in p.cmdline()))

    def ended(self, status: int, says: str | None = None) -> str:
        """It ends with this status and sentence, and nothing is left; what it said."""
        _, err = self.process.communicate(timeout=120)
        assert self.process.returncode == status, err
        assert gone(self.family), "a process is left"
        assert (names_in(SHARED_MEMORY), names_in(self.temporary)) == self.before
        if says is not None:
            lines = [line for line in err.splitlines() if line and not line.startswith("Stopping: ")]
            assert len(lines) == 1 and says in lines[0], err
        return err


@pytest.fixture
def watch(stretto, temporary):
    """Starts a command and watches it."""
    started: list[Watch] = []

    def start(*arguments: str) -> Watch:
        started.append(Watch(stretto.start(*arguments), temporary))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def run_of(stretto, name: str) -> Path:
    return stretto.folder / "runs" / name


def check_free(run: Path, status: str) -> RunView:
    """The record says how it ended, and nobody holds it."""
    view = RunView(run)
    assert view.status == status
    assert not is_locked(run / "run.lock")
    return view


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "keys"),
    [
        (signal.SIGTERM, FAKES),
        pytest.param(signal.SIGINT, FAKES, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, [], marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, ["schedule.max_staleness=1"], marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, ENVIRONMENT, marks=pytest.mark.slow),
    ],
    ids=["SIGTERM", "SIGINT", "SIGINT, real", "SIGINT, one step ahead", "SIGTERM, environment"],
)
def test_a_signal_saves_and_resume_gives_the_same_bits(number, keys, stretto, watch):  # pitfalls 7, 31
    (stretto.folder / "echo.py").write_text(ECHO)
    keys = [*keys, "steps=20", "save.every=null"]
    whole = stretto.train("whole", keys)
    watched, run = watch("train", stretto.short, "name=stopped", *keys), run_of(stretto, "stopped")
    wait_for_step(watched.process, run, 5)
    watched.look()
    watched.process.send_signal(number)
    watched.ended(130, "Go on with `stretto resume stopped`")
    view = check_free(run, "interrupted")
    assert view.checkpoint().taken.header.steps_done == view.steps
    stretto.run("resume", "stopped")
    assert compare_runs(whole, run, weights=WEIGHTS) == []


SLOW = [FAKES[0], "backend={type: fake, lr: 0.1, step_s: 0.5}", FAKES[2], "warmup=null", "save.every=1"]
"""An update takes long enough to be hit twice."""


HEARD = "Once more to leave at once"
"""A second signal is sent once the first was heard: the system makes one of two that nobody has taken yet."""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_second_signal_leaves_at_once_and_leaves_nothing(number, stretto, watch):  # pitfall 31
    watched, run = watch("train", stretto.short, "name=left", *SLOW), run_of(stretto, "left")
    wait_for_step(watched.process, run, 1)
    watched.look()
    assert len(watched.family) == 3, "two reward processes"
    watched.process.send_signal(number)
    wait_until(watched.process, lambda: HEARD in watched.process.stderr.readline())
    watched.process.send_signal(number)
    assert watched.ended(130) == ""
    view = check_free(run, "killed")
    assert view.checkpoint().taken.header.steps_done in (1, 2)
    stretto.run("resume", "left", "steps=3")


@pytest.mark.slow
def test_a_second_ctrl_c_gives_the_terminal_its_cursor_back(stretto):
    parent, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "stretto", "train", stretto.short, "name=shown", *SLOW],
        cwd=stretto.folder,
        env={**os.environ, "TERM": "xterm"},
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(terminal)
    seen = b""
    while HIDDEN not in seen or b"1/8" not in seen:
        seen += os.read(parent, 1 << 16)
    process.send_signal(signal.SIGINT)
    while HEARD.encode() not in seen:  # the display shows it, above its foot
        seen += os.read(parent, 1 << 16)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(parent, 1 << 16):
            seen += chunk
    os.close(parent)
    assert process.returncode == 130
    assert seen.rfind(SHOWN) > seen.rfind(HIDDEN)


def moments(process: subprocess.Popen[str], run: Path):
    """What can be seen of a start-up from outside, in order."""
    events = run / "events.jsonl"
    yield "the record", lambda: events.exists()
    yield "a reward process", lambda: bool(psutil.Process(process.pid).children())
    yield "a publication", lambda: '"publish"' in events.read_text()


@pytest.mark.parametrize(
    ("moment", "keys"),
    [
        ("a reward process", FAKES),
        pytest.param("the record", FAKES, marks=pytest.mark.slow),
        pytest.param("a publication", FAKES, marks=pytest.mark.slow),
        pytest.param("the record", [], marks=pytest.mark.slow),
        pytest.param("a reward process", [], marks=pytest.mark.slow),
        pytest.param("a publication", [], marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_during_the_start(moment, keys, stretto, watch):  # pitfall 31
    watched, run = watch("train", stretto.short, "name=early", *keys), run_of(stretto, "early")
    for name, there in moments(watched.process, run):
        wait_until(watched.process, there)
        if name == moment:
            break
    watched.look()
    watched.process.send_signal(signal.SIGINT)
    err = watched.ended(130)
    assert "Traceback" not in err
    assert RunView(run).status in ("interrupted", "killed")  # killed: before anything was there to be told to stop
    stretto.run("resume", "early")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["eval", "try"])
def test_ctrl_c_in_what_keeps_nothing(command, stretto, watch):
    """It stops at the first signal: there is nothing to finish."""
    (stretto.folder / "slow.py").write_text(
        "import time\n\ndef reward(prompt, trajectory):\n    time.sleep(0.2)\n    return 1.0\n"
    )
    keys = ["prompts.max=30", "prompts.held_out=0.5", "reward.use=slow:reward"]
    given = [command, "builtin:tiny-llama-char", *keys]
    if command == "try":
        given = [command, stretto.short, "warmup=null", "--seconds", "300", *keys]
    watched = watch(*given)
    wait_until(watched.process, lambda: len(psutil.Process(watched.process.pid).children()) > 0)
    watched.look()
    watched.process.send_signal(signal.SIGINT)
    watched.ended(130, "was stopped. There is nothing to keep of it")


# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "status", "says"),
    [
        (["reward.on_error=fail"], 3, "the reward process died of SIGKILL"),
        pytest.param(["reward.on_error=retry"], 0, None, marks=pytest.mark.slow),
        pytest.param(["reward.on_error=drop", "schedule.deterministic=false"], 0, None, marks=pytest.mark.slow),
        pytest.param(["reward.on_error=drop"], 3, "Under schedule.deterministic=true", marks=pytest.mark.slow),
    ],
    ids=["fail", "retry", "drop", "drop, deterministic"],
)
def test_a_reward_process_that_is_killed(keys, status, says, stretto, watch):  # pitfalls 1, 31
    keys = [*FAKES, *TRAINS, *keys]
    watched, run = watch("train", stretto.short, "name=hit", *keys), run_of(stretto, "hit")
    wait_for_step(watched.process, run, 3)
    watched.look()
    watched.child("worker").kill()
    watched.ended(status, says)
    if status:
        check_free(run, "failed")
        stretto.run("resume", "hit")
    elif "reward.on_error=retry" in keys:
        assert compare_runs(stretto.train("whole", keys), run, weights=WEIGHTS) == []
    else:
        assert sum(e.kind == "group" and e.body.state == "dropped" for e in RunView(run).events) <= 2
    assert (RunView(run).status, RunView(run).steps) == ("done", 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "status", "says"),
    [("retry", 0, None), ("fail", 3, "the environment process died of SIGKILL")],
)
def test_an_environment_process_that_is_killed(policy, status, says, stretto, watch):  # pitfalls 3, 31
    # Whoever is not being played when its process dies is none the worse: it dies in the midst of a call.
    (stretto.folder / "echo.py").write_text(ECHO.replace("        self.left -= 1", WAITS_ONCE))
    keys = ["warmup=null", *FAKES[:2], *ENVIRONMENT, "steps=6", TRAINS[1], f"environment.on_error={policy}"]
    watched, run = watch("train", stretto.short, "name=hit", *keys), run_of(stretto, "hit")
    wait_until(watched.process, (stretto.folder / "waits").exists)
    watched.look()
    watched.child("player").kill()
    watched.ended(status, says)
    if status:
        check_free(run, "failed")
        stretto.run("resume", "hit")
    assert (RunView(run).status, RunView(run).steps) == ("done", 6)
    if policy == "retry":
        assert compare_runs(stretto.train("whole", keys), run, weights=WEIGHTS) == []


HITS_THE_ENGINE = """
import ctypes, threading

def reward(prompt, trajectory):
    if trajectory.key.draw >= 12:
        for thread in threading.enumerate():
            if thread.name == "stretto-native-engine":
                hit = ctypes.py_object(HIT)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), hit)
    return float(len(trajectory.text))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["MemoryError", "SystemExit"])
def test_an_engine_thread_that_is_hit(what, stretto, watch):  # pitfalls 4, 34
    (stretto.folder / "hits.py").write_text(HITS_THE_ENGINE.replace("HIT)", f"{what})"))
    keys = ["warmup=null", "reward.use=hits:reward", "reward.workers=0"]
    watched = watch("train", stretto.short, "name=hit", *keys)
    wait_for_step(watched.process, run_of(stretto, "hit"), 0)
    watched.look()
    watched.ended(3, what)
    check_free(run_of(stretto, "hit"), "failed")


@pytest.mark.parametrize(
    "keys",
    [FAKES, pytest.param([], marks=pytest.mark.slow), pytest.param(ENVIRONMENT, marks=pytest.mark.slow)],
    ids=["fakes", "real", "environment"],
)
def test_a_run_that_is_killed_takes_its_children_with_it(keys, stretto, watch):  # pitfalls 8, 31
    (stretto.folder / "echo.py").write_text(ECHO)
    keys = [*keys, "steps=12", *(["warmup=null"] if keys is ENVIRONMENT else [])]
    watched, run = watch("train", stretto.short, "name=killed", *keys), run_of(stretto, "killed")
    wait_for_step(watched.process, run, 3)
    watched.look()
    assert len(watched.family) > 1
    watched.process.kill()
    watched.ended(-signal.SIGKILL)
    check_free(run, "killed")
    stretto.run("resume", "killed")
    assert compare_runs(stretto.train("whole", keys), run, weights=WEIGHTS) == []


def test_training_outlasts_whoever_reads_what_it_says(stretto):  # pitfall 24
    process = stretto.start("train", stretto.short, "name=heard")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith("short: starting")
    process.stdout.close()
    assert (process.wait(timeout=120), process.stderr.read()) == (0, "")
    assert RunView(stretto.folder / "runs" / "heard").steps == 8


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_under_the_output_is_said_once_and_ends_nothing(stretto):  # pitfall 24
    command = [sys.executable, "-m", "stretto", "train", stretto.short, "name=full"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=stretto.folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.count("cannot be written (No space left on device); the command goes on") == 1
    assert RunView(stretto.folder / "runs" / "full").status == "done"
