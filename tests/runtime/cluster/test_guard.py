"""The guard: it ends what names the cluster's folder, whenever its parent is gone; in order, nothing."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from leftovers import gone

from stretto.runtime.cluster.guard import kill_all, processes_of
from stretto.runtime.cluster.own import GUARD

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="stretto-ray-"))
    (path / "logs").mkdir()
    yield path
    assert not path.exists() or not list(processes_of(str(path)))


def sleeping(*words):
    return psutil.Popen([sys.executable, "-c", SLEEP, *words])


def titled(title, printed):
    """A process whose command line is a title, as Ray's workers have, and that prints into a file."""
    with printed.open("w") as out:
        return psutil.Popen(["bash", "-c", f"exec -a {title} sleep 60"], stdout=out)


def guard_of(*lines):
    """The guard after its parent has said this and is gone."""
    return subprocess.run([sys.executable, str(GUARD)], input="".join(f"{line}\n" for line in lines), text=True)


def ended(*processes):
    for process in processes:
        if process.poll() is None and gone([process]):
            process.wait()
    return [process.poll() is not None for process in processes]


def test_before_it_knows_any_process_the_folder_is_enough(folder, tmp_path):
    named, worker = sleeping(f"--temp-dir={folder}"), titled("ray::Roller.begin", folder / "logs" / "worker.out")
    other, elsewhere = sleeping("--temp-dir=/tmp/ray"), titled("ray::IDLE", tmp_path / "worker.out")
    try:
        while len(list(processes_of(str(folder)))) < 2:
            pass
        assert guard_of(folder).returncode == 0
        assert ended(named, worker) == [True, True]
        assert not folder.exists()
        assert (other.poll(), elsewhere.poll()) == (None, None), "they are of another cluster"
    finally:
        kill_all([named, worker, other, elsewhere])
        psutil.wait_procs([named, worker, other, elsewhere], timeout=10)


def test_what_it_knows_is_ended_though_nothing_names_the_folder(folder):
    one, gone_before = sleeping(), sleeping()
    known = json.dumps([(gone_before.pid, gone_before.create_time()), (one.pid, one.create_time()), (one.pid, 1.0)])
    kill_all([gone_before])
    gone_before.wait()
    try:
        assert guard_of(folder, known).returncode == 0
        assert ended(one) == [True] and not folder.exists()
    finally:
        kill_all([one])


@pytest.mark.parametrize("known", [[], ["[]"]])
def test_after_an_end_in_order_it_touches_nothing(folder, known):
    named = sleeping(str(folder))
    try:
        assert guard_of(folder, *known, "done").returncode == 0
        assert named.poll() is None and folder.exists()
    finally:
        kill_all([named])
        named.wait()
        (folder / "logs").rmdir()
        folder.rmdir()


def test_a_process_that_ends_while_it_is_looked_at_does_not_keep_the_rest_from_their_end():
    first, second = sleeping(), sleeping()
    looked_at = [psutil.Process(first.pid), psutil.Process(second.pid)]
    first.kill()
    first.wait()
    kill_all(looked_at)
    assert second.wait(timeout=20) != 0
