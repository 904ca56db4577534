"""Where the CPU time of a quickstart step goes: generate (engine thread), train (learner thread), reward, record, rest.

Generate and train are the CPU times of their threads; the rest shares the driver's thread and is told apart by timing
calls on its own CPU clock: making trajectories of completions (text, masks) counts as generate, judging as reward,
writing the record as record. Publication counts as train (it runs on the learner's thread), but for what the engine
does in it. What is left is the price of graph, pool, tasks, hand-overs and windows.

Prediction (written before the first run): generate 40 %, train 52 %, reward 1 %, record 2 %, rest 5 %. Target: rest
under 5 %.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from stretto.api.runs import start
from stretto.config.load import load_recipe
from stretto.environments.judge import RewardJudge
from stretto.recipes import FOLDER
from stretto.store import Event, RunStore
from stretto.workflows import nodes
from table import print_table, write_result

WARM, STEPS = 20, 120


class Spent:
    """CPU seconds of the calling thread inside wrapped functions, by part; nested calls count once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = threading.local()

    def wrap(self, owner: object, name: str, part: str) -> None:
        """Time every call of a method or function. A coroutine that awaits must not be wrapped."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            driver = threading.current_thread().name == "stretto-driver"
            if not driver or getattr(self._inside, "on", False):
                return function(*args, **kwargs)
            self._inside.on, begin = True, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside.on = False
                self.seconds[part] = self.seconds.get(part, 0.0) + time.thread_time() - begin

        setattr(owner, name, timed)


def thread_seconds() -> dict[str, float]:
    """CPU seconds by Python thread name; threads that Python did not start count as ``other``."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: dict[str, float] = {}
    for thread in psutil.Process().threads():
        name = names.get(thread.id, "other")
        seconds[name] = seconds.get(name, 0.0) + thread.user_time + thread.system_time
    return seconds


def main() -> None:
    """Run, print the table, write results/step.json."""
    torch.set_num_threads(1)
    spent = Spent()
    for method in ("event", "group", "flush"):
        spent.wrap(RunStore, method, "record")
    spent.wrap(nodes, "_attempt", "trajectories")
    judge_here = RewardJudge.judge

    async def judge(self: RewardJudge, group: Any) -> Any:
        begin = time.thread_time()  # with workers=0 nothing is awaited inside
        try:
            return await judge_here(self, group)
        finally:
            spent.seconds["reward"] = spent.seconds.get("reward", 0.0) + time.thread_time() - begin

    RewardJudge.judge = judge  # type: ignore[method-assign]
    marks: dict[int, tuple[dict[str, float], dict[str, float], float]] = {}

    def observe(event: Event) -> None:
        if event.kind == "step" and event.phase == "main" and event.step in (WARM, STEPS - 1):
            marks[event.step] = (thread_seconds(), dict(spent.seconds), time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        quick = [f"steps={STEPS}", "warmup.max_steps=80", "warmup.evaluate.every=80", "evaluate.every=null"]
        quick += [
            "evaluate.at_start=false",
            "evaluate.at_end=false",
            "save.every=null",
            "save.keep_best=null",
            f"runs_dir={folder}",
        ]
        start(load_recipe("quickstart", quick, packaged=FOLDER).recipe, hint="step", observer=observe)
    (threads_0, spent_0, wall_0), (threads_1, spent_1, wall_1) = marks[WARM], marks[STEPS - 1]
    steps = STEPS - 1 - WARM
    threads = {name: threads_1[name] - threads_0.get(name, 0.0) for name in threads_1}
    parts = {name: spent_1[name] - spent_0[name] for name in spent_1}
    cpu = {
        "generate": threads.get("stretto-native-engine", 0.0) + parts["trajectories"],
        "train": sum(seconds for name, seconds in threads.items() if name.startswith("stretto-learner")),
        "reward": parts["reward"],
        "record": parts["record"],
        "rest": threads["stretto-driver"] - sum(parts.values()),
        "other": threads.get("other", 0.0) + threads.get("MainThread", 0.0),
    }
    total = sum(cpu.values())
    rows = [{"part": name, "cpu_ms": 1e3 * s / steps, "share_%": 100 * s / total} for name, s in cpu.items()]
    rows.append({"part": "step", "cpu_ms": 1e3 * total / steps, "share_%": 100.0})
    print_table(f"CPU time of a quickstart step, mean of {steps} (wall {1e3 * (wall_1 - wall_0) / steps:.0f} ms)", rows)
    write_result("step", rows)


if __name__ == "__main__":
    main()
