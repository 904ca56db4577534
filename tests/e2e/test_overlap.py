"""Rollout beside training on the real tiny model: what else runs changes when things happen, and no bit where the
schedule drains; where sequences go on while weights change, every token says by which it was written."""

import os
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest

from stretto.api.runs import resume, start
from stretto.config.load import recipe_from_mapping
from stretto.errors import Interrupted
from stretto.store.compare import compare_runs

SLEEPS_S = 0.0


def digits(prompt, trajectory) -> float:
    time.sleep(random.random() * SLEEPS_S)
    return float(np.sum(trajectory.token_ids_T) % 3)


def recipe(folder, name, **changes):
    sections = {
        "runs_dir": str(folder),
        "name": name,
        "steps": 5,
        "reward": {"use": f"{__name__}:digits", "workers": 0},
        "sampling": {"n": 4, "max_tokens": 6},
        "engine": {"slots": 8, "threads": 1},  # fewer than a step has: some wait for a slot
        "backend": {"lr": 1e-3, "threads": 1},
        "schedule": {"groups_per_step": 4, "max_staleness": 1},
        "evaluate": {"at_start": False, "every": 2, "limit": 8},
    }
    for key, value in changes.items():
        sections[key] = {**sections.get(key, {}), **value} if isinstance(value, dict) else value
    return recipe_from_mapping(sections)


@pytest.fixture
def load(monkeypatch):
    """Threads that take Python's lock, and rewards that sleep."""
    monkeypatch.setattr(sys.modules[__name__], "SLEEPS_S", 0.02)
    stop, before = threading.Event(), sys.getswitchinterval()

    def turn():
        while not stop.is_set():
            sum(range(2000))

    busy = [threading.Thread(target=turn) for _ in range(2)]
    sys.setswitchinterval(1e-5)
    for thread in busy:
        thread.start()
    yield
    stop.set()
    sys.setswitchinterval(before)
    for thread in busy:
        thread.join()


@pytest.fixture
def quiet(tmp_path):
    return start(recipe(tmp_path, "quiet")).path


def test_under_load_the_bits_are_the_same(tmp_path, quiet, load):  # pitfall 22
    assert compare_runs(quiet, start(recipe(tmp_path, "loaded")).path) == []


def test_stopped_under_load_and_resumed_the_bits_are_the_same(tmp_path, quiet, load):  # pitfalls 8, 22
    _stopped_after(2, recipe(tmp_path, "stopped", save={"every": 1}))
    assert compare_runs(quiet, resume(tmp_path / "stopped").path) == []


@pytest.mark.parametrize("in_flight", ["keep", "recompute"])
def test_sequences_go_on_while_weights_change(tmp_path, in_flight):
    """The bound holds for every token, after a stop too; some sequences are written by several versions."""
    # pitfalls 5, 7, 9
    schedule = {"max_staleness": 3, "in_flight": in_flight, "deterministic": False}
    changes = {"schedule": schedule, "sampling": {"max_tokens": 24}, "steps": 8, "save": {"every": 2}}
    _stopped_after(5, recipe(tmp_path, "run", **changes))
    view = resume(tmp_path / "run")
    assert (view.status, view.steps) == ("done", 8)
    trained = [(g.step, t) for g in view.groups() for t in g.group.trajectories]
    assert len(trained) == 8 * 4 * 4
    assert len({t.key for _, t in trained}) == len(trained)
    assert all(0 <= step - s.version <= 3 for step, t in trained for s in t.versions)
    assert all(sum(s.length for s in t.versions) == t.mask_T.sum() for _, t in trained)
    assert any(len(t.versions) > 1 for _, t in trained)


def _stopped_after(steps, recipe):
    """Run it, and ask it to stop after so many steps."""

    def observe(event):
        if event.kind == "step" and event.step == steps - 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        start(recipe, observer=observe)
