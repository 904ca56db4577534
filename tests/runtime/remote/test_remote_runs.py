"""Whole runs on a Ray cluster of this machine: the bits of one process, on any number of rollers; nothing is left."""

import os
import signal

import pytest
from leftovers import nothing_left
from small_runs import recipe

from stretto.api.runs import resume, start
from stretto.errors import Interrupted, RewardError
from stretto.store.compare import compare_runs

pytestmark = pytest.mark.ray


def on_ray(folder, name, rollers=2, **changes):
    changes["cluster"], changes["placement"] = {"type": "ray"}, {"rollers": rollers}
    return recipe(folder, name, **changes)


def test_bits_are_those_of_one_process_beside_staleness_filters_and_a_stop(tmp_path):
    # pitfalls 21, 22
    changes = {
        "schedule": {"max_staleness": 1},
        "filter": {"use": "small_runs:odd_one_out"},
        "evaluate": {"every": 2, "limit": 8, "engines": 1},
    }
    here = start(recipe(tmp_path, "here", **changes))
    with nothing_left(files=False):
        stopped = []

        def stop(event):
            if event.kind == "step" and event.step == 1 and not stopped:
                stopped.append(True)
                os.kill(os.getpid(), signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(Interrupted):
                start(on_ray(tmp_path, "there", **changes), observer=stop)
        finally:
            signal.signal(signal.SIGINT, before)
        there = resume(tmp_path / "there")
    assert (there.status, there.steps) == ("done", 4)
    assert compare_runs(here.path, there.path) == []
    assert {g.by for g in there.groups(filtered=True)} == {"roller-0", "roller-1"}
    assert (here.path / "model/model.safetensors").read_bytes() == (there.path / "model/model.safetensors").read_bytes()


def test_what_ends_a_run_there_is_told_as_here(tmp_path):
    failing = {"reward": {"use": "small_runs:moody", "workers": 1}}
    with nothing_left(files=False), pytest.raises(RewardError, match="not this one") as caught:
        start(on_ray(tmp_path, "run", rollers=1, **failing))
    assert "stretto resume" in str(caught.value)
