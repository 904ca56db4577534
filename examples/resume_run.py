"""Stop a run in the middle, go on with it, and compare it with one that was never stopped: not a bit differs."""

import signal
import threading

import stretto
from stretto.errors import Interrupted
from stretto.store import Event, StepBody, compare_runs

MAIN_THREAD = threading.get_ident()
settings = {
    "steps": 30,
    "prompts": {"type": "builtin", "max": 9},
    "sampling": {"n": 4, "max_tokens": 4},
    "schedule": {"groups_per_step": 4},
    "backend": {"lr": 1e-3, "threads": 1},
    "save": {"every": 4},
}


def press_ctrl_c(event: Event) -> None:
    """What Ctrl-C does, a few steps into the run. An observer sees every event as it is recorded."""
    if isinstance(event.body, StepBody) and event.step == 2:
        signal.pthread_kill(MAIN_THREAD, signal.SIGINT)


whole = stretto.train("grpo", name="whole", **settings)
try:
    stretto.train("grpo", name="stopped", observer=press_ctrl_c, **settings)
except Interrupted as interrupted:
    print(interrupted)

stopped = stretto.resume("stopped")
print(whole)
print(stopped, "in", len({event.attempt for event in stopped.view.all_events}), "attempts")
print("differences:", compare_runs(whole.path, stopped.path))
