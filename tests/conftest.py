"""A run written by the real store with made-up events: warm-up, main phase, evaluations, as a quickstart leaves it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.store import (
    EvalBody,
    Event,
    Example,
    GroupBody,
    PhaseBody,
    RunSpec,
    RunStore,
    RunView,
    StepBody,
)

NUM_WARMUP, NUM_MAIN = 60, 200


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--golden-dir DIR``: golden files of the same schema to take instead of those in tests/golden/data."""
    parser.addoption("--golden-dir", default=None, help="a folder of golden files to check instead of the project's")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many golden cases passed and failed, by file and variant."""
    counts: dict[str, list[int]] = {}
    for outcome, place in (("passed", 0), ("failed", 1)):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", []):
                if name == "golden":
                    counts.setdefault(value, [0, 0])[place] += 1
    if counts:
        terminalreporter.section("golden cases")
        for name, (passed, failed) in sorted(counts.items()):
            terminalreporter.write_line(f"{name:45} {passed:4} passed{f' {failed:4} FAILED' if failed else ''}")


def example(uid: int, completion: str, answer: str) -> Example:
    return Example(
        uid=f"{uid}", prompt=f"{uid}+{uid}=", completion=completion, answer=answer, reward=float(completion == answer)
    )


def examples(right: int) -> tuple[Example, ...]:
    """Ten problems, of which the first ``right`` are solved."""
    return tuple(example(i, f"{2 * i}" if i < right else "7\n", f"{2 * i}") for i in range(10))


def record_warmup(store: RunStore) -> None:
    """The warm-up, ended by its target."""
    store.event(PhaseBody(state="start", workflow="sft", steps=1000), phase="warmup", step=0)
    for step in range(NUM_WARMUP):
        store.event(StepBody(metrics={"loss": 3 / (step + 1)}), phase="warmup", step=step)
        if (step + 1) % 10 == 0:
            accuracy = 0.46 * ((step + 1) / NUM_WARMUP) ** 3
            store.event(EvalBody(name="held_out", accuracy=accuracy, n=500), phase="warmup", step=step + 1)
    reason = "reached"
    store.event(
        PhaseBody(state="end", workflow="sft", steps=NUM_WARMUP, reason=reason), phase="warmup", step=NUM_WARMUP
    )


def record_main(store: RunStore) -> None:
    """The main phase."""
    store.event(PhaseBody(state="start", workflow="grpo", steps=NUM_MAIN), phase="main", step=0)
    store.event(EvalBody(name="held_out", accuracy=0.473, n=2000, examples=examples(4)), phase="main", step=0)
    for step in range(NUM_MAIN):
        wobble = 0.05 * math.sin(step)
        reward = 0.9 - 0.5 * math.exp(-step / 60) + wobble
        metrics = {"reward/mean": reward, "batch/trajectories": 128.0, "batch/written_tokens": 448.0, "loss": 0.1}
        if step in (5, 6):
            store.group(GroupBody(draw=step, uid="1+1", n=0, state="dropped", why="too long"), phase="main")
        store.event(StepBody(metrics=metrics), phase="main", step=step)
        if (step + 1) % 50 == 0:
            body = EvalBody(name="held_out", accuracy=reward - wobble, n=2000, examples=examples(4 + step // 50 + 1))
            store.event(body, phase="main", step=step + 1)
    store.event(PhaseBody(state="end", workflow="grpo", steps=NUM_MAIN), phase="main", step=NUM_MAIN)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run in ``tmp_path / "runs"``."""

    def make(name: str = "quickstart", *, end: bool = True, main: bool = True) -> Path:
        spec = RunSpec(hint="quickstart", config={}, seed=3, steps=NUM_MAIN, name=name)
        with RunStore.create(tmp_path / "runs", spec) as store:
            record_warmup(store)
            if main:
                record_main(store)
            if end:
                store.end("done")
            return store.path

    return make


@pytest.fixture
def view(make_run: Callable[..., Path]) -> RunView:
    """A finished run."""
    return RunView(make_run())


@pytest.fixture
def events(view: RunView) -> list[Event]:
    """Its events, one every half second of a made-up clock."""
    return [
        Event(
            seq=e.seq,
            time_s=1000 + 0.5 * i,
            attempt=e.attempt,
            body=e.body,
            phase=e.phase,
            step=e.step,
            version=e.version,
        )
        for i, e in enumerate(view.events)
    ]
