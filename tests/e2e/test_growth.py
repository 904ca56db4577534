"""pitfall 33: what a run holds does not grow with its steps, once it is warm, nor does the time of a step.

``benchmarks/growth.py`` and ``benchmarks/soak.py`` show how.
"""

import asyncio
import gc
import statistics
import sys
import threading

import psutil
import pytest

from stretto.api.runs import start
from stretto.config.load import recipe_from_mapping

EARLY, LATE = range(300, 501), range(800, 1001)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not psutil.LINUX, reason="counts files as Linux does")
def test_a_thousand_steps_hold_no_more_than_three_hundred(tmp_path):
    process, samples = psutil.Process(), {}

    def observe(event):
        if event.kind == "step" and event.step % 25 == 0:
            resident = process.memory_info().rss
            gc.collect()
            samples[event.step] = (resident, sys.getallocatedblocks(), process.num_fds(), threading.active_count())

    recipe = {
        "runs_dir": str(tmp_path),
        "steps": 1001,
        "prompts": {"type": "builtin", "name": "addition", "max": 9},  # seen once, a prompt keeps a few bytes more
        "reward": {"use": "exact_match"},
        "sampling": {"n": 4, "max_tokens": 4},
        "engine": {"slots": 16, "threads": 1},
        "backend": {"threads": 1},
        "schedule": {"groups_per_step": 4, "max_staleness": 1},
        "evaluate": {"every": 100, "limit": 16},
        "save": {"every": 100},
    }
    view = start(recipe_from_mapping(recipe), observer=observe)
    early, late = ([median(samples, part, i) for i in range(4)] for part in (EARLY, LATE))
    grown = [after - before for before, after in zip(early, late, strict=True)]
    assert grown[0] < 6e6, f"{grown[0] / 1e6:.1f} MB of resident memory"
    assert grown[1] < 500, f"{grown[1]:.0f} blocks of Python's: one a step would be 500"
    assert grown[2:] == [0, 0], "open files or threads"
    records = sum(path.stat().st_size for path in view.path.rglob("*.jsonl"))
    everything = sum(path.stat().st_size for path in view.path.rglob("*") if path.is_file())
    assert records < 1001 * 16 * 1000, "a record of more than 1,000 bytes for an attempt of 4 tokens"
    assert everything - records < 3 * 13e6 + 1e6, "more than the checkpoints that are kept, and the exported model"


@pytest.mark.slow
@pytest.mark.skipif(not psutil.LINUX, reason="counts files as Linux does")
def test_every_process_of_a_run_on_fakes_stays_as_it_is(tmp_path):
    """Stretto's own part, at speed; its reward process too. CPU time is the benchmark's to say."""
    process, samples = psutil.Process(), {}

    def observe(event):
        if event.kind == "step" and event.step % 25 == 0:
            child = process.children()[0].memory_info().rss
            gc.collect()
            tasks = len(asyncio.all_tasks())
            samples[event.step] = (child, sys.getallocatedblocks(), process.num_fds(), threading.active_count(), tasks)

    recipe = {
        "runs_dir": str(tmp_path),
        "steps": 1501,
        "engine": {"type": "fake"},
        "backend": {"type": "fake"},
        "prompts": {"type": "builtin", "name": "addition", "max": 9},
        "reward": {"use": "exact_match"},
        "sampling": {"n": 4, "max_tokens": 4},
        "schedule": {"groups_per_step": 4, "max_staleness": 1},
        "evaluate": {"every": 100, "limit": 16},
        "save": {"every": 100},
    }
    start(recipe_from_mapping(recipe), observer=observe)
    early, late = ([median(samples, part, i) for i in range(5)] for part in (EARLY, range(1300, 1501)))
    grown = [after - before for before, after in zip(early, late, strict=True)]
    assert grown[0] < 1e6, f"{grown[0] / 1e6:.1f} MB of resident memory of the reward process"
    assert grown[1] < 500, f"{grown[1]:.0f} blocks of Python's: one a step would be 1,000"
    assert grown[2:] == [0, 0, 0], "open files, threads or tasks"


def median(samples, steps, of):
    return statistics.median(sample[of] for step, sample in samples.items() if step in steps)
