"""Several ranks that train on a Ray cluster: the numbers of one process but for rounding, and checkpoints for any."""

import signal

import numpy as np
import psutil
import pytest
from leftovers import nothing_left
from safetensors.numpy import load_file
from small_runs import recipe

from stretto.api.runs import resume, start
from stretto.store import RunView

pytestmark = pytest.mark.ray


def on_ray(folder, name="run", learners=2, **changes):
    changes["placement"] = {"learners": learners, "rollers": 2, **changes.get("placement", {})}
    return recipe(folder, name, cluster={"type": "ray", "heartbeat_s": 0.2}, **changes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same run in one process."""
    return start(recipe(tmp_path_factory.mktemp("alone"), "run"))


def same_but_for_rounding(a: RunView, b: RunView) -> None:
    for name in ("grad_norm", "loss", "reward/mean", "batch/tokens", "sampler_ratio"):
        one, other = (np.array([value for _, value in run.history(name)]) for run in (a, b))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=name)
    weights, others = (load_file(run.path / "model/model.safetensors") for run in (a, b))
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        np.testing.assert_allclose(tensor, others[name], atol=2e-5, err_msg=name)


def test_two_ranks_train_as_one_process_and_one_goes_on_where_they_stopped(tmp_path, alone):  # pitfalls 13, 29
    with nothing_left(files=False):
        view = start(on_ray(tmp_path, schedule={"groups_per_step": 4}, steps=2))
        names = {path.name for path in (view.path / "checkpoints/step-2").iterdir()}
        assert {"policy.0of2.safetensors", "policy.1of2.safetensors", "policy.shards.json"} <= names
        back = resume(view.path, ["steps=4", "cluster.type=local", "placement.learners=1", "placement.rollers=1"])
    assert (back.status, back.steps) == ("done", 4)
    same_but_for_rounding(alone, back)


@pytest.mark.slow
def test_four_ranks_in_two_copies_and_a_rank_that_is_lost(tmp_path, alone):
    done = []

    def lose(event):
        if event.kind == "step" and event.step == 2 and not done:
            done.append(True)
            learners = [c for c in psutil.Process().children(recursive=True) if c.name().startswith("ray::Learner")]
            sorted(learners, key=lambda c: c.create_time())[-1].send_signal(signal.SIGKILL)

    with nothing_left(files=False):
        view = start(on_ray(tmp_path, learners=4, placement={"replicas": 2}), observer=lose)
    assert view.status == "done" and done
    (error,) = view.errors()
    assert error.type == "WorkerLost" and "learner-" in error.message
    same_but_for_rounding(alone, view)
