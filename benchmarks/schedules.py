"""What a schedule gains where completions differ in length: runs of the driver against a simulator. ``make
bench-schedules``.

Engine and backend are fakes that take time and no arithmetic: a completion a lognormal time on one of 32 slots, an
update 120 ms. Widths are deviations of the logarithm. Staleness 0 takes turns; 1 drains before each publication; 4 lets
sequences go on (``in_flight: keep``). Measured: steps a second, and of all the time the share in which no rollout was
under way (engine idle) and in which no step trained (learner idle). The simulator (``simulated.py``) is given the
same times of completions and knows no overhead.

Prediction (written before the first run): every throughput within 10 % of the simulator's, a few percent below, since
the driver takes some milliseconds a step. Staleness 1 gains most where both sides are as long; with wide lengths it
still waits for the longest at every window, and only 4 in flight fills the slots: nearly three times the throughput of
1 at a width of 1.25.
"""

import statistics
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from simulated import Case, simulate
from stretto.api.runs import start
from stretto.api.tracing import export_trace
from stretto.config.load import recipe_from_mapping
from stretto.data.seeds import sample_seed
from stretto.store import Event, RunView
from stretto.testing import FakeEngine
from table import print_table, write_result

STEPS, SKIP = 70, 10
GROUPS, N, SLOTS = 8, 4, 32
DELAY_S, STEP_S = 0.08, 0.12
WIDTHS = (0.25, 0.75, 1.25)
SCHEDULES = {"0": (0, "drain"), "1": (1, "drain"), "4, in flight": (4, "keep")}
SEED = 0
TRACES = Path(__file__).parents[1] / "runs" / "bench-schedules"


def measured(width: float, staleness: int, in_flight: str) -> dict[str, float]:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_from_mapping(
            {
                "runs_dir": folder,
                "steps": STEPS,
                "seed": SEED,
                "engine": {"type": "fake", "delay_s": DELAY_S, "spread": width, "slots": SLOTS},
                "backend": {"type": "fake", "step_s": STEP_S},
                "prompts": {"type": "builtin", "name": "addition", "max": 99},
                "sampling": {"n": N, "max_tokens": 8},
                "schedule": {
                    "groups_per_step": GROUPS,
                    "max_staleness": staleness,
                    "in_flight": in_flight,
                    "deterministic": in_flight == "drain",
                },
                "reward": {"workers": 0},
                "evaluate": {"at_start": False, "at_end": False},
            }
        )
        view = start(recipe, hint="schedules")
        TRACES.mkdir(parents=True, exist_ok=True)
        export_trace(view, TRACES / f"width-{width}-staleness-{staleness}.json")
        return _figures(view)


def _figures(view: RunView) -> dict[str, float]:
    """Of the steps after the first ``SKIP``."""
    ends = [event.time_s for event in view.events if event.kind == "step"]
    rollouts = [(begin, end) for name, begin, end in _nodes(view.events, "group") if name == "group"]
    trained = [(begin, end) for _, begin, end in _nodes(view.events, "step")]
    staleness = [e.body.metrics["staleness/mean"] for e in view.events if e.kind == "step"]  # type: ignore[union-attr]
    return {
        "steps_per_s": (len(ends) - SKIP) / (ends[-1] - ends[SKIP - 1]),
        "engine_idle": 1 - _share(rollouts, ends[SKIP - 1], ends[-1]),
        "learner_idle": 1 - _share(trained, ends[SKIP - 1], ends[-1]),
        "staleness": statistics.mean(staleness[SKIP:]),
    }


def _nodes(events: tuple[Event, ...] | list[Event], world: str) -> list[tuple[str, float, float]]:
    """Name, begin and end of every node of this world that ran."""
    if world == "group":
        found = [n for e in events if e.kind == "group" for n in e.body.nodes]  # type: ignore[union-attr]
    else:
        found = [e.body for e in events if e.kind == "node"]
    return [(n.id, n.start_s, n.start_s + n.duration_s) for n in found]  # type: ignore[union-attr]


def _share(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Of the time from ``begin`` to ``end``, how much the spans cover."""
    covered, until = 0.0, begin
    for left, right in sorted(spans):
        covered += max(0.0, min(right, end) - max(left, until))
        until = max(until, min(right, end))
    return covered / (end - begin)


def foretold(width: float, staleness: int, in_flight: str) -> dict[str, float]:
    """The simulator's figures, given the times that the engine takes."""
    case = Case(
        completions=GROUPS * N, slots=SLOTS, step_s=STEP_S, max_staleness=staleness, drains=in_flight == "drain"
    )
    engine = FakeEngine(delay_s=DELAY_S, spread=width)
    asked = ((draw, sample) for draw in count() for sample in range(N))
    found = simulate(case, STEPS, lambda: engine.seconds(sample_seed(SEED, "train", *next(asked))))
    begin, end = found.ends_s[SKIP - 1], found.ends_s[-1]
    return {
        "steps_per_s": (STEPS - SKIP) / (end - begin),
        "engine_idle": 1 - _share(found.completions, begin, end),
        "learner_idle": 1 - _share(found.steps, begin, end),
    }


def main() -> None:
    """Run, print the table, write results/schedules.json."""
    rows: list[dict[str, object]] = []
    for width in WIDTHS:
        for name, (staleness, in_flight) in SCHEDULES.items():
            ours, theirs = measured(width, staleness, in_flight), foretold(width, staleness, in_flight)
            rows.append(
                {
                    "width": width,
                    "staleness": name,
                    "steps_per_s": ours["steps_per_s"],
                    "simulated": theirs["steps_per_s"],
                    "ratio": ours["steps_per_s"] / theirs["steps_per_s"],
                    "engine_idle": ours["engine_idle"],
                    "simulated_engine_idle": theirs["engine_idle"],
                    "learner_idle": ours["learner_idle"],
                    "simulated_learner_idle": theirs["learner_idle"],
                    "mean_staleness": ours["staleness"],
                }
            )
            print_table(f"width {width}, staleness {name}", rows[-1:])
    print_table("Throughput of schedules against the simulator", rows)
    write_result("schedules", rows)


if __name__ == "__main__":
    main()
