"""What kills leave is named, with what to do, and only half-written files are ever removed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from stretto.api.doctor.leftovers import find_leftovers, orphans, remove_files
from stretto.store import RunSpec, RunStore, RunView
from stretto.store.lock import RunLock

ELSEWHERE = ("process", "cluster")
"""What is not in the folder of runs, so that others on this machine may have left it."""
SHORT = Path(__file__).parents[2] / "e2e" / "short.yaml"


def start_training(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "stretto", "train", str(SHORT), "name=mine", "steps=100000", "save.every=null"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for(what, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def steps_of(run: Path) -> int:
    return RunView(run).steps if (run / "run.json").exists() and (run / "events.jsonl").exists() else 0


def test_a_training_process_that_is_killed(tmp_path):
    # pitfall 31
    run = tmp_path / "runs" / "mine"
    process = start_training(tmp_path)
    try:
        wait_for(lambda: steps_of(run) > 0)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "the reward process"
        assert [left for left in find_leftovers(tmp_path / "runs") if left.kind not in ELSEWHERE] == [], "it lives"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    psutil.wait_procs(children, timeout=30)
    found = find_leftovers(tmp_path / "runs")
    (left,) = [left for left in found if left.kind == "run"]
    assert f"Run mine was killed at step {steps_of(run)}," in left.message
    assert "stretto resume" in left.remedy and str(run) in left.remedy
    pids = {str(child.pid) for child in children}
    assert not [left for left in found if left.kind == "process" and left.name in pids], "its children went with it"


@pytest.fixture
def killed(tmp_path):
    """A run whose process died while it saved and exported."""
    runs = tmp_path / "runs"
    with RunStore.create(runs, RunSpec(hint="x", config={}, seed=0, steps=4, name="mine")) as store:
        path = store.path
    for name in (
        "checkpoints/.tmp-step-4",
        "checkpoints/.bad-step-1",
        "checkpoints/.old-step-2",
        ".new-model",
        ".old-model",
    ):
        (path / name).mkdir(parents=True)
        (path / name / "weights").write_bytes(b"w" * 1000)
    (path / ".run.json.tmp").write_text("{")
    return path


def test_half_written_files_are_named_and_removed_only_when_asked(killed):
    # pitfalls 10, 31
    runs = killed.parent
    before = sorted(p.name for p in killed.rglob("*"))
    found = [left for left in find_leftovers(runs) if left.kind not in ELSEWHERE]
    assert sorted(p.name for p in killed.rglob("*")) == before, "looking changes nothing"
    removable = {Path(left.name).name for left in found if left.removable}
    assert removable == {".tmp-step-4", ".new-model", ".run.json.tmp"}
    assert {Path(left.name).name for left in found if left.kind == "aside"} == {
        ".bad-step-1",
        ".old-step-2",
        ".old-model",
    }
    assert all(left.remedy for left in found)
    assert {Path(name).name for name in remove_files(runs)} == removable
    assert not [left for left in find_leftovers(runs) if left.removable]
    assert (killed / "checkpoints" / ".old-step-2" / "weights").exists() and (killed / "run.json").exists()


def test_a_run_that_is_being_written_is_left_alone(killed):
    lock = RunLock(killed / "run.lock")
    try:
        assert [left for left in find_leftovers(killed.parent) if left.kind not in ELSEWHERE] == []
        assert remove_files(killed.parent) == []
    finally:
        lock.release()
    assert (killed / ".new-model").exists()


def test_damaged_records_are_named_and_hide_nothing(killed, tmp_path):
    other = tmp_path / "runs" / "other"
    with RunStore.create(tmp_path / "runs", RunSpec(hint="x", config={}, seed=0, steps=4, name="other")):
        pass
    (killed / "run.json").write_text("{")
    (tmp_path / "runs" / "unborn" / "rollouts").mkdir(parents=True)
    found = find_leftovers(tmp_path / "runs")
    damaged = {Path(left.name).name for left in found if left.kind == "damaged"}
    assert damaged == {"mine", "unborn"}
    assert [left.name for left in found if left.kind == "run"] == [other.name]


def test_an_orphan_is_found(tmp_path):
    # a process like those of rewards, whose parent ends at once and which does not notice
    child = "# from stretto.environments.worker import main\nimport time; time.sleep(60)"
    parent = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True, stdout=subprocess.DEVNULL, "
        "stderr=subprocess.DEVNULL)\nprint(p.pid)"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True, timeout=60)
    pid = int(done.stdout)
    try:
        wait_for(lambda: pid in {process.pid for process in orphans()})
        (left,) = [left for left in find_leftovers(tmp_path) if left.name == str(pid)]
        assert left.kind == "process" and f"kill {pid}" in left.remedy and not left.removable
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster():
    """The folder of a Ray cluster that a killed run left."""
    folder = Path(tempfile.mkdtemp(prefix="stretto-ray-"))
    (folder / "session").mkdir()
    yield folder
    shutil.rmtree(folder)


def age(folder: Path) -> None:
    os.utime(folder, (time.time() - 3600,) * 2)


def cluster_left(folder: Path, runs: Path):
    return [left for left in find_leftovers(runs) if left.kind == "cluster" and left.name == str(folder)]


def test_a_clusters_folder_is_found_once_it_cannot_be_one_that_starts(cluster, tmp_path):
    # pitfall 31
    assert cluster_left(cluster, tmp_path) == [], "it may be starting"
    age(cluster)
    (left,) = cluster_left(cluster, tmp_path)
    assert "none of its processes lives" in left.message and left.remedy == "Remove the folder." and not left.removable
    assert cluster.exists()


def test_a_clusters_processes_that_live_on_are_found_and_those_with_a_driver_are_not(cluster, tmp_path):
    # pitfall 31
    age(cluster)
    word = f"--temp-dir={cluster}"
    driven = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", word])
    try:
        wait_for(lambda: any(word in part for part in psutil.Process(driven.pid).cmdline()))
        assert cluster_left(cluster, tmp_path) == [], "its driver is this process"
    finally:
        driven.kill()
        driven.wait()
    parent = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {word!r}],"
        " stdout=subprocess.DEVNULL, "
        "stderr=subprocess.DEVNULL, start_new_session=True)\nprint(p.pid)"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True, timeout=60)
    pid = int(done.stdout)
    try:
        wait_for(lambda: any(f"kill -9 {pid}" in left.remedy for left in cluster_left(cluster, tmp_path)))
    finally:
        os.kill(pid, signal.SIGKILL)


def test_no_runs_at_all(tmp_path):
    assert [left for left in find_leftovers(tmp_path / "runs") if left.kind not in ELSEWHERE] == []
    assert remove_files(tmp_path / "runs") == []
