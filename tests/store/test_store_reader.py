import json
import math

import pytest

from stretto.errors import ConfigError, StoreError
from stretto.store import (
    EndBody,
    ErrorBody,
    EvalBody,
    Example,
    Header,
    RunStore,
    RunView,
    StepBody,
    find_run,
    list_runs,
    newest_run,
    write_json,
)


def step(store, number, phase="main", **metrics):
    store.event(StepBody(metrics=metrics, cpu_s=float(number)), phase=phase, step=number)
    store.flush()


def evaluation(store, number, accuracy, phase="main", examples=()):
    body = EvalBody(name="held_out", accuracy=accuracy, n=100, examples=examples)
    store.event(body, phase=phase, step=number)


def checkpoint(store, number, phase="main"):
    header = Header(phase=phase, steps_done=number, version=number)
    store.checkpoint(header, lambda folder: write_json(folder / "state.json", {}), keep_last=2)


def test_the_summary_of_the_issue(new_run):
    with new_run() as store:
        step(store, 0, phase="warmup", loss=9.0)
        evaluation(store, 1, 0.4, phase="warmup")
        evaluation(store, 0, 0.45)
        step(store, 0, loss=1.0, kl=0.1)
        step(store, 1, loss=math.nan)
        evaluation(store, 2, 0.9)
        store.end("done", reason="all steps done")
    view = RunView(store.path)
    summary = view.summary()
    end = view.all_events[-1].body
    assert isinstance(end, EndBody)
    assert summary == {
        "run": "quick",
        "status": "done",
        "steps": 2,
        "seed": 3,
        "wall_s": end.wall_s,
        "cpu_s": end.cpu_s,
        "warmup": {"steps": 1, "evals": [{"step": 1, "name": "held_out", "accuracy": 0.4, "n": 100, "metrics": {}}]},
        "evals": [
            {"step": 0, "name": "held_out", "accuracy": 0.45, "n": 100, "metrics": {}},
            {"step": 2, "name": "held_out", "accuracy": 0.9, "n": 100, "metrics": {}},
        ],
        "metrics": {"loss": None, "kl": 0.1},
    }
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert view.history("kl") == [(0, 0.1)]
    assert view.history("loss", "warmup") == [(0, 9.0)]
    assert end.wall_s >= 0
    assert end.cpu_s >= 0


def test_superseded_records_do_not_show(new_run):
    # pitfall 8
    with new_run() as store:
        step(store, 0, loss=0.0)
        checkpoint(store, 1)
        evaluation(store, 1, 0.5)  # after the save, in the same window
        step(store, 1, loss=-1.0)
        evaluation(store, 2, 0.1)
    with RunStore.open(store.path) as store:
        step(store, 1, loss=1.0)
        step(store, 2, loss=2.0)
    view = RunView(store.path)
    assert view.history("loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert [(e.step, e.body.accuracy) for e in view.evaluations()] == [(1, 0.5)]
    assert view.steps == 3


def test_a_warm_up_resumed_supersedes_the_main_phase(new_run):
    # pitfall 36
    with new_run() as store:
        step(store, 0, phase="warmup", loss=5.0)
        checkpoint(store, 1, phase="warmup")
        step(store, 0, loss=1.0)
    with RunStore.open(store.path) as store:
        assert store.found.taken.header.phase == "warmup"
        view = RunView(store.path)
        assert view.steps == 0
        assert view.history("loss", "warmup") == [(0, 5.0)]


def test_status_and_time_over_attempts(new_run):
    store = new_run()
    step(store, 0)
    step(store, 1)
    assert RunView(store.path).status == "running"
    store.close()
    killed = RunView(store.path)
    assert killed.status == "killed"
    assert killed.cpu_s == 1.0  # as of its last step
    assert killed.wall_s == killed.all_events[-1].time_s - killed.all_events[1].time_s
    with RunStore.open(store.path) as store:
        store.end("interrupted", reason="SIGINT")
        view = RunView(store.path)
        assert view.status == "interrupted"  # it has ended, though it still holds the lock
    end = view.all_events[-1].body
    assert view.cpu_s == killed.cpu_s + end.cpu_s
    assert view.wall_s == killed.wall_s + end.wall_s
    RunStore.open(store.path).close()
    assert RunView(store.path).status == "killed"


def test_examples_and_errors(new_run):
    example = Example(uid="p1", prompt="1+2=", completion="3", answer="3", reward=1.0)
    with new_run() as store:
        evaluation(store, 0, 0.5, examples=(example,))
        store.event(ErrorBody(type="ValueError", message="no", where="node score"))
        store.end("failed")
    view = RunView(store.path)
    assert view.examples() == [(0, (example,))]
    assert view.examples(name="other") == []
    assert [error.message for error in view.errors()] == ["no"]
    assert view.checkpoint().taken is None


def test_finding_runs(new_run, tmp_path):
    runs = tmp_path / "runs"
    assert list_runs(runs) == []
    with pytest.raises(ConfigError, match=r"there is no run in .*`stretto train quickstart` makes one"):
        newest_run(runs)
    for _ in range(3):
        new_run(hint="quickstart").close()
    (runs / "half-made").mkdir()
    assert [path.name for path in list_runs(runs)] == ["quickstart", "quickstart-2", "quickstart-3"]
    assert newest_run(runs).name == "quickstart-3"
    assert find_run(runs, "quickstart-2") == runs / "quickstart-2"
    assert find_run(tmp_path, str(runs / "quickstart")) == runs / "quickstart"
    with pytest.raises(ConfigError, match=r"there is no run 'quikstart' in .*Did you mean 'quickstart'\?"):
        find_run(runs, "quikstart")


def test_a_damaged_description_is_named(new_run):
    store = new_run()
    store.close()
    (store.path / "run.json").write_text("{")
    with pytest.raises(StoreError, match=r"run\.json is not valid JSON"):
        RunView(store.path)
    (store.path / "run.json").write_text('{"code":null}')
    with pytest.raises(StoreError, match=r"run\.json is not a run description of schema 1"):
        RunView(store.path)
    with pytest.raises(StoreError, match=r"run\.json cannot be read: No such file"):
        RunView(store.path.parent)
