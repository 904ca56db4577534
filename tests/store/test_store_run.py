import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.errors import ConfigError, ResumeError, StoreError
from stretto.store import (
    AttemptBody,
    EvalBody,
    GroupBody,
    Header,
    PublishBody,
    ResumedFrom,
    RunBody,
    RunSpec,
    RunStore,
    RunView,
    StepBody,
    read_events,
    write_json,
)


def write(folder: Path) -> None:
    write_json(folder / "state.json", {"ok": True})


def train(store: RunStore, make_group, steps: range, save_at: tuple[int, ...] = ()) -> None:
    for step in steps:
        body = GroupBody(draw=step, uid=f"p{step}", n=2, reward_mean=1.0)
        store.group(body, make_group(step), phase="main", step=step, version=step)
        store.event(StepBody(metrics={"loss": step / 3}, cpu_s=store.cpu_s), phase="main", step=step, version=step)
        store.event(PublishBody(version=step + 1, duration_s=0.0, bytes=1), phase="main", step=step + 1)
        if step + 1 in save_at:
            header = Header(phase="main", steps_done=step + 1, version=step + 1)
            store.checkpoint(header, write, keep_last=2)
        store.flush()


def test_a_new_run(new_run):
    with new_run(config={"key": "env:TOKEN", "lr": 3e-5}, threads=2, parent="before") as store:
        path = store.path
    info = json.loads((path / "run.json").read_text())
    assert info["name"] == path.name == "quick"
    assert info["config"] == {"key": "env:TOKEN", "lr": 3e-5}
    assert (info["seed"], info["steps"], info["threads"], info["parent"]) == (3, 10, 2, "before")
    assert {"python", "torch", "numpy", "stretto"} <= set(info["versions"])
    first, second = read_events(path / "events.jsonl")
    assert first.body == RunBody(name="quick", seed=3, steps=10)
    assert isinstance(second.body, AttemptBody)
    assert (second.body.attempt, second.body.pid, second.body.resumed_from) == (1, os.getpid(), None)


def test_code_state(new_run, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert new_run().info.code is None
    subprocess.run(["git", "init", "-q"], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    clean = new_run().info.code
    assert (len(clean.commit), clean.dirty) == (40, False)
    Path("new.py").write_text("")
    assert new_run().info.code.dirty is True


def test_fresh_names(new_run):
    assert [new_run().path.name for _ in range(3)] == ["quick", "quick-2", "quick-3"]


def test_a_named_run_that_exists_is_refused(new_run, tmp_path):
    new_run(name="mine").close()
    with pytest.raises(ConfigError, match=r"run 'mine' exists already in .*`stretto resume .*mine`, or choose another"):
        new_run(name="mine")
    (tmp_path / "runs" / "left").mkdir()
    with pytest.raises(ConfigError, match=r"left exists already and is not a run .*Remove it"):
        new_run(name="left")


def _make(runs: Path) -> str:
    with RunStore.create(runs, RunSpec(hint="q", config={}, seed=0, steps=1)) as store:
        return store.path.name


def test_names_are_never_shared(tmp_path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        names = pool.map(_make, [tmp_path] * 12)
    assert sorted(names) == sorted(["q"] + [f"q-{n}" for n in range(2, 13)])


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"no run can be created in .*: Not a directory .*set runs_dir"):
        RunStore.create(tmp_path / "file" / "runs", RunSpec(hint="q", config={}, seed=0, steps=1))


def test_a_config_that_is_not_json_frees_the_lock(tmp_path):
    with pytest.raises(StoreError, match=r"run\.json cannot be written"):
        RunStore.create(tmp_path, RunSpec(hint="q", config={"x": float("nan")}, seed=0, steps=1))
    with pytest.raises(ResumeError, match=r"q is not a run: it has no run\.json"):
        RunStore.open(tmp_path / "q")


def test_a_parent_that_cannot_be_copied_leaves_no_run(new_run, tmp_path):
    with new_run() as store:
        saved = store.checkpoint(Header(phase="main", steps_done=1, version=1), write, keep_last=1)
    shutil.rmtree(saved.path)
    num_open = psutil.Process().num_fds()
    with pytest.raises(StoreError, match="No such file or directory"):
        new_run(name="fork", begin=saved)
    assert not (tmp_path / "runs" / "fork").exists()
    assert psutil.Process().num_fds() == num_open


def test_a_record_that_cannot_be_begun_is_closed(new_run, tmp_path, monkeypatch):
    new_run(name="run").close()
    num_open = psutil.Process().num_fds()
    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "event", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            RunStore.open(tmp_path / "runs" / "run")
    assert psutil.Process().num_fds() == num_open
    RunStore.open(tmp_path / "runs" / "run").close()


def test_one_writer_at_a_time(new_run):
    store = new_run()
    with pytest.raises(ResumeError, match=rf"run 'quick' is being written by process {os.getpid()}\. Wait"):
        RunStore.open(store.path)
    store.close()
    store.close()
    RunStore.open(store.path).close()


def test_the_lock_goes_with_the_process(tmp_path):
    script = (
        "import os, sys, pathlib; from stretto.store import *\n"
        "s = RunStore.create(pathlib.Path(sys.argv[1]), RunSpec(hint='q', config={}, seed=0, steps=1))\n"
        "print(s.path, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    path = Path(child.stdout.readline().strip())
    assert RunView(path).status == "running"
    with pytest.raises(ResumeError, match=rf"process {child.pid}"):
        RunStore.open(path)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert RunView(path).status == "killed"
    with RunStore.open(path) as store:
        assert store.attempt == 2
        assert store.found.taken is None


def test_resuming_takes_the_newest_whole_checkpoint_and_says_what_it_skipped(new_run, make_group):
    # pitfall 10
    with new_run() as store:
        train(store, make_group, range(6), save_at=(2, 4))
        path = store.path
    (path / "checkpoints" / "step-4" / "state.json").write_text("damaged")
    (path / "checkpoints" / ".tmp-step-5").mkdir()
    with RunStore.open(path) as store:
        assert store.found.taken.path.name == "step-2"
        assert [s.path.name for s in store.found.skipped] == ["step-4"]
        train(store, make_group, range(2, 3))
    attempt = [e.body for e in read_events(path / "events.jsonl") if isinstance(e.body, AttemptBody)][-1]
    seq = store.found.taken.manifest.seq
    assert attempt.resumed_from == ResumedFrom(phase="main", steps_done=2, seq=seq)
    assert RunView(path).steps == 3
    with RunStore.open(path) as store:  # the damaged one is out of the way for good
        assert store.found.skipped == ()
    assert sorted(p.name for p in (path / "checkpoints").iterdir()) == [".bad-step-4", "step-2"]


def test_groups_are_durable_before_the_events_that_speak_of_them(new_run, make_group):
    # pitfall 7
    with new_run() as store:
        train(store, make_group, range(2))
        view = RunView(store.path)
        assert [g.group.draw for g in view.groups()] == [0, 1]
        assert [g.group.draw for g in view.groups(step=1)] == [1]
        store.group(GroupBody(draw=9, uid="p", n=0, state="dropped", why="timeout"), phase="main")
        with pytest.raises(AssertionError):
            store.group(GroupBody(draw=9, uid="p", n=0), phase="main")
    assert [g.group.draw for g in RunView(store.path).groups()] == [0, 1]


def test_observers_see_every_event_in_order(new_run):
    store = new_run()
    seen = []
    store.subscribe(seen.append)
    threads = [
        threading.Thread(target=lambda: [store.event(StepBody(metrics={}), phase="main", step=n) for n in range(100)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    written = list(read_events(store.path / "events.jsonl"))
    assert written[2:] == seen
    assert [e.seq for e in written] == list(range(402))


def test_a_checkpoint_never_outlives_the_records_before_it(new_run, make_group):
    with new_run() as store:
        event = store.event(StepBody(metrics={}), phase="main", step=0)
        saved = store.checkpoint(Header(phase="main", steps_done=1, version=1), write, keep_last=1)
        assert saved.manifest.seq == event.seq
        assert list(read_events(store.path / "events.jsonl"))[-1].kind == "checkpoint"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10**9), cut_rollouts=st.integers(0, 10**9))
def test_a_log_cut_at_any_byte_is_readable_and_resumable(tmp_path_factory, whole_run, make_group, cut, cut_rollouts):
    # pitfall 8
    path = tmp_path_factory.mktemp("cut") / "run"
    shutil.copytree(whole_run, path)
    for name, at in (("events.jsonl", cut), ("rollouts/main-1.jsonl", cut_rollouts)):
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: at % (len(data) + 1)])
    before = RunView(path)
    assert before.status == "killed"
    assert before.steps <= 6
    before.groups()
    with RunStore.open(path) as store:
        assert store.found.taken.header.steps_done == 4
        assert store.attempt == 2
        train(store, make_group, range(4, 6))
        store.end("done")
    after = RunView(path)
    assert after.status == "done"
    assert after.steps == 6
    assert after.history("loss")[-2:] == [(4, 4 / 3), (5, 5 / 3)]
    assert len({step for step, _ in after.history("loss")}) == len(after.history("loss"))
    assert [g.group.draw for g in after.groups()][-2:] == [4, 5]
    seqs = [e.seq for e in after.all_events]
    assert seqs == sorted(set(seqs))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory, make_group):
    runs = tmp_path_factory.mktemp("whole")
    with RunStore.create(runs, RunSpec(hint="q", config={}, seed=0, steps=6)) as store:
        store.event(EvalBody(name="held_out", accuracy=0.1, n=10), phase="main", step=0)
        train(store, make_group, range(6), save_at=(2, 4))
    return store.path


def test_a_broken_line_in_the_middle_names_file_and_line(new_run, make_group):
    with new_run() as store:
        train(store, make_group, range(2))
    path = store.path / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:20] + "\n", *lines[4:]]))
    with pytest.raises(StoreError, match=r"events\.jsonl, line 4: not an event"):
        RunView(store.path)
    with pytest.raises(StoreError, match=r"events\.jsonl, line 4: not an event"):
        RunStore.open(store.path)


def test_importing_the_store_loads_no_torch():
    code = "import sys, stretto.store; print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
