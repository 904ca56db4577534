from dataclasses import replace

import numpy as np
import pytest

from stretto.store import EvalBody, GroupBody, Header, RunStore, StepBody, compare_runs


def fill(store, make_group, *, loss=0.5, weight=b"w", draws=(0, 1), change=None, accuracy=0.5, optimizer=b"o"):
    for draw in draws:
        group = make_group(draw)
        if change and draw == 0:
            first, *rest = group.trajectories
            group = replace(group, trajectories=(replace(first, **change(first)), *rest))
        store.group(GroupBody(draw=draw, uid="p", n=2), group, phase="main", step=0)
    metrics = {"loss": loss, "nan": float("nan"), "time/step_s": float(id(store))}
    store.event(StepBody(metrics=metrics), phase="main", step=0)
    store.event(EvalBody(name="held_out", accuracy=accuracy, n=4), phase="main", step=1)

    def write(folder):
        (folder / "model.safetensors").write_bytes(weight)
        (folder / "optimizer.bin").write_bytes(optimizer)

    store.checkpoint(Header(phase="main", steps_done=1, version=1), write, keep_last=1)
    store.close()
    return store.path


def test_equal_runs_have_no_difference(new_run, make_group):
    a = fill(new_run(), make_group)
    assert compare_runs(a, fill(new_run(), make_group)) == []
    assert compare_runs(a, fill(new_run(), make_group, draws=(1, 0))) == []  # finished in another order
    assert compare_runs(a, fill(new_run(), make_group, optimizer=b"x")) == []
    changed = fill(new_run(), make_group, optimizer=b"y")
    assert [d.where for d in compare_runs(a, changed, weights=["*.bin"])] == ["final checkpoint optimizer.bin"]


def test_a_resumed_run_is_compared_by_what_counts(new_run, make_group):
    a = fill(new_run(), make_group)
    store = new_run()
    store.group(GroupBody(draw=0, uid="p", n=2), make_group(5), phase="main", step=0)
    store.event(StepBody(metrics={"loss": 7.0}), phase="main", step=0)
    store.close()
    assert compare_runs(a, fill(RunStore.open(store.path), make_group)) == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"loss": np.nextafter(0.5, 1.0)}, "main step 0 loss"),
        ({"accuracy": 0.25}, "main step 1 eval held_out accuracy"),
        ({"weight": b"x"}, "final checkpoint model.safetensors"),
        ({"draws": (0,)}, "main draw 1 prompt"),
        ({"change": lambda t: {"logprobs_T": np.nextafter(t.logprobs_T, np.float32(-9))}}, "logprobs"),
        ({"change": lambda t: {"token_ids_T": t.token_ids_T + np.int32(1)}}, "tokens"),
        ({"change": lambda t: {"reward": 0.0}}, "rewards"),
    ],
)
def test_the_smallest_change_is_found(new_run, make_group, changes, where):
    differences = compare_runs(fill(new_run(), make_group), fill(new_run(), make_group, **changes))
    assert differences
    assert any(where in difference.where for difference in differences), [str(d) for d in differences]
    if "change" in changes or "weight" in changes or "loss" in changes:
        assert len(differences) == 1


def test_what_only_one_has_is_absent_in_the_other(new_run, make_group):
    a = fill(new_run(), make_group)
    empty = new_run()
    empty.close()
    found = {d.where: str(d) for d in compare_runs(a, empty.path)}
    assert found["main step 0 loss"] == "main step 0 loss: 0.5 | absent"
    assert found["final checkpoint"] == "final checkpoint: step-1 | absent"
