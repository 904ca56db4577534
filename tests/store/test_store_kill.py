"""Real processes, killed for good at random moments while they do little but save."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stretto.store import RunSpec, RunStore, RunView, read_groups, read_json
from stretto.store.checkpoints import newest

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from stretto.store import *
from stretto.types import *

def group(draw):
    t = Trajectory(key=Key(draw, 0), token_ids_T=np.arange(4, dtype=np.int32), mask_T=np.ones(4, np.uint8),
                   logprobs_T=np.full(4, -1 / (draw + 1), np.float32), versions=(Span(draw, 4),), finish="stop")
    return Group(draw=draw, prompt=Prompt(uid="u", text="", token_ids=np.zeros(1, np.int32)), trajectories=(t,))

with RunStore.open(Path(sys.argv[1])) as store:
    taken = store.found.taken
    done = taken.header.steps_done if taken else 0
    print("opened", done, flush=True)
    while True:
        store.group(GroupBody(draw=done, uid="u", n=1), group(done), phase="main", step=done)
        store.event(StepBody(metrics={"loss": 1 / (done + 1)}), phase="main", step=done)
        done += 1
        def write(folder):
            for part in range(4):
                (folder / f"part-{part}.safetensors").write_bytes(bytes([done % 256]) * 50_000)
            write_json(folder / "state.json", {"steps": done})
            write_groups(folder / "groups.jsonl", [group(done)])
        store.checkpoint(Header(phase="main", steps_done=done, version=done), write, keep_last=1)
        store.flush()
        print("saved", done, flush=True)
"""


def lives(path: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    done = 0
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdout=subprocess.PIPE, text=True)
        opened = child.stdout.readline()
        assert opened == f"opened {opened.split()[1]}\n"
        assert int(opened.split()[1]) >= done, "a finished save was lost"
        time.sleep(rng.uniform(0.0, 0.15))
        child.kill()
        said = child.stdout.read().split()
        child.stdout.close()
        child.wait()
        done = max([int(opened.split()[1]), *map(int, said[1::2])])

        RunView(path).groups()
        found = newest(path / "checkpoints")
        steps = found.taken.header.steps_done if found.taken else 0
        assert steps in (done, done + 1), "the newest whole checkpoint is the last that was said, or the next"
        assert not found.skipped
        if found.taken:
            assert read_json(found.taken.path / "state.json") == {"steps": steps}
            assert [g.draw for g in read_groups(found.taken.path / "groups.jsonl")] == [steps]
        done = steps
    with RunStore.open(path) as store:
        assert store.attempt == kills + 2
        view = RunView(path)
    assert view.history("loss") == [(step, 1 / (step + 1)) for step in range(done)]
    assert [g.group.draw for g in view.groups()] == list(range(done))
    left = {p.name for p in (path / "checkpoints").iterdir()}
    assert left <= {f"step-{done}", f"step-{done - 1}"}  # the older one: killed before it was removed
    assert done > kills // 2


def new(tmp_path: Path) -> Path:
    with RunStore.create(tmp_path, RunSpec(hint="q", config={}, seed=0, steps=None)) as store:
        return store.path


def test_a_kill_at_any_moment_leaves_the_newest_checkpoint_whole(tmp_path):
    # pitfall 10
    lives(new(tmp_path), kills=8, seed=0)


@pytest.mark.slow
def test_many_kills(tmp_path):
    # pitfall 10
    lives(new(tmp_path), kills=80, seed=1)
