"""Groups that workers write themselves: the reader puts them together with the events of the driver."""

from stretto.store import GroupBody, RunSpec, RunStore, RunView
from stretto.store.worker_file import WorkerRollouts
from stretto.testing import make_group, same


def new_run(folder):
    return RunStore.create(folder, RunSpec(hint="run", name="run", config={}, seed=0, steps=1))


def told(store, draw, by, step=0, state="finished", why=""):
    store.group(GroupBody(draw=draw, uid="p", n=2, by=by, state=state, why=why), phase="main", step=step, version=None)


def test_what_a_worker_wrote_has_step_and_reason_from_its_event(tmp_path):
    with new_run(tmp_path) as store:
        a, b = (WorkerRollouts(store.path, store.attempt, name) for name in ("roller-0", "roller-1"))
        b.write("main", make_group(1))
        a.write("main", make_group(0))
        a.write("main", make_group(2), "too easy")
        a.write("warmup", make_group(3))
        told(store, 0, "roller-0", step=4)
        told(store, 1, "roller-1", step=5)
        told(store, 2, "roller-0", step=4, state="filtered", why="too easy")
        store.group(GroupBody(draw=7, uid="p", n=2), make_group(7), phase="main", step=6)  # written by the driver
        for worker in (a, b):
            worker.sync()
            worker.close()
    view = RunView(tmp_path / "run")
    found = view.groups(filtered=True)
    assert [(g.group.draw, g.step, g.why) for g in found] == [(0, 4, ""), (1, 5, ""), (2, 4, "too easy"), (7, 6, "")]
    assert all(same(g.group, make_group(g.group.draw)) for g in found)
    assert [g.group.draw for g in view.groups(step=4)] == [0]


def test_a_draw_that_was_made_twice_counts_once_and_what_nobody_heard_of_does_not(tmp_path):
    with new_run(tmp_path) as store:
        dead, alive = (WorkerRollouts(store.path, store.attempt, name) for name in ("roller-0", "roller-1"))
        dead.write("main", make_group(0, rewards=(0.0, 0.0)))  # it died before it could say so
        alive.write("main", make_group(0, rewards=(1.0, 1.0)))
        told(store, 0, "roller-1")
        dead.close()
        alive.close()
    (found,) = RunView(tmp_path / "run").groups(filtered=True)
    assert [t.reward for t in found.group.trajectories] == [1.0, 1.0]
