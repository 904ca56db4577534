"""Rollout beside training on the real tiny model: what else runs changes when things happen, and no bit."""

import sys
import threading

import numpy as np

from stretto.api.runs import start
from stretto.config.load import recipe_from_mapping
from stretto.store.compare import compare_runs


def digits(prompt, trajectory) -> float:
    return float(np.sum(trajectory.token_ids_T) % 3)


def run(folder, name):
    recipe = {
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
    return start(recipe_from_mapping(recipe)).path


def test_under_load_the_bits_are_the_same(tmp_path):  # pitfall 22
    quiet, stop = run(tmp_path, "quiet"), threading.Event()

    def load():
        while not stop.is_set():
            sum(range(2000))

    before = sys.getswitchinterval()
    busy = [threading.Thread(target=load) for _ in range(2)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in busy:
            thread.start()
        loaded = run(tmp_path, "loaded")
    finally:
        stop.set()
        sys.setswitchinterval(before)
        for thread in busy:
            thread.join()
    assert compare_runs(quiet, loaded) == []
