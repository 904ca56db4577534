"""Something raises in any phase of a run: what comes out is the first cause, all is closed, nothing is left, the record
says so, and the run goes on to the end, to the same bits where its schedule promises them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from leftovers import nothing_left
from short_runs import FAKES, REAL, SCHEDULES, Watched, first_cause, in_processes, recipe_of

from stretto.api.runs import resume, start
from stretto.engines.native import NativeEngine
from stretto.engines.native.scheduler import Scheduler
from stretto.environments.judge import RewardJudge
from stretto.errors import EngineError, NodeError, StoreError
from stretto.runtime import publishing as publishing_module
from stretto.runtime.binding import GroupBinding
from stretto.runtime.checkpoint import Captured
from stretto.runtime.colocation import Colocation
from stretto.runtime.driver import Driver
from stretto.runtime.phases import Phase
from stretto.runtime.pool import Pool
from stretto.runtime.recording import Recorder
from stretto.runtime.saving import Saving
from stretto.runtime.worker import Worker
from stretto.store import Event, RunStore, RunView, compare_runs
from stretto.store.lock import is_locked
from stretto.testing import FakeBackend, FakeEngine
from stretto.weights.in_process import InProcessSync

pytestmark = pytest.mark.usefixtures("leaves_nothing")

WEIGHTS = ("weights.json", "*.safetensors")


class Fault(Exception):
    """What is raised."""


class Exit(BaseException):
    """What is raised where no ``except Exception`` keeps it."""


@dataclass(frozen=True)
class Trap:
    """A method that raises instead of what it does, at its first call once a step of a phase is done (``after``)."""

    owner: Any
    method: str
    after: tuple[str, int] | None = ("main", 0)


TRAPS = {
    "admission": Trap(Pool, "admit"),
    "a per-group node": Trap(GroupBinding, "bind"),
    "sampling": Trap(FakeEngine, "generate"),
    "the reward": Trap(RewardJudge, "judge"),
    "recording a group": Trap(Recorder, "group"),
    "taking": Trap(Pool, "take"),
    "the per-step program": Trap(Worker, "run"),
    "an update": Trap(FakeBackend, "update"),
    "the end of a step": Trap(Phase, "end_step"),
    "the drain": Trap(Pool, "drained"),
    "publication": Trap(InProcessSync, "publish"),
    "what is published": Trap(FakeBackend, "tensors"),
    "opening the engine's window": Trap(FakeEngine, "update_weights"),
    "recording a step": Trap(Recorder, "step"),
    "the window": Trap(Driver, "_window"),
    "evaluation": Trap(Driver, "_evaluate"),
    "a checkpoint": Trap(RunStore, "checkpoint"),
    "what a checkpoint holds": Trap(FakeBackend, "capture"),
    "a phase's place": Trap(Driver, "_open", ("warmup", 1)),
    "a phase's begin": Trap(Phase, "begin", ("warmup", 1)),
    "entering a phase": Trap(Recorder, "enter", ("warmup", 1)),
    "leaving the warm-up": Trap(Recorder, "leave", ("warmup", 1)),
    "leaving the last phase": Trap(Recorder, "leave", ("main", 3)),
    "the export": Trap(FakeBackend, "export", ("main", 3)),
    "the warm-up's begin": Trap(Phase, "begin", None),
    "the warm-up's admission": Trap(Pool, "admit", None),
    "the first publication": Trap(InProcessSync, "publish", None),
    "writing a checkpoint": Trap(Captured, "write"),
    "beginning to save": Trap(Saving, "begin"),
    "giving the trainer its memory": Trap(Colocation, "train"),
    "the probe": Trap(publishing_module, "probe_weights", None),
}


class Armed:
    """Sets a trap, and counts how often it went off. An observer arms it."""

    def __init__(self, trap: Trap, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
        self.trap, self.raised = trap, error("on purpose")
        self.armed, self.fired = trap.after is None, 0
        whole: Callable[..., Any] = getattr(trap.owner, trap.method)

        def trapped(*args: Any, **kwargs: Any) -> Any:
            if self.armed:
                self.armed = False
                self.fired += 1
                raise self.raised
            return whole(*args, **kwargs)

        monkeypatch.setattr(trap.owner, trap.method, trapped)

    def __call__(self, event: Event) -> None:
        if event.kind == "step" and (event.phase, event.step) == self.trap.after:
            self.armed = True


@pytest.fixture(scope="module", params=SCHEDULES)
def whole(request, tmp_path_factory):
    """A schedule, and a run that nothing befell."""
    folder = tmp_path_factory.mktemp("whole")
    return request.param, start(recipe_of(folder, "whole", schedule=SCHEDULES[request.param])).path


def fails(recipe, armed: Armed, watched: Watched) -> BaseException:
    """Run until the trap goes off; what came out."""
    with nothing_left(), pytest.raises(BaseException) as caught:
        start(recipe, observer=armed)
    assert armed.fired == 1, caught.value
    assert first_cause(caught.value) is armed.raised
    watched.check()
    return caught.value


@pytest.mark.parametrize("error", [Fault, Exit])
@pytest.mark.parametrize("what", TRAPS)
def test_a_phase_that_raises(what, error, whole, tmp_path, monkeypatch):  # pitfalls 8, 31, 34
    schedule, reference = whole
    trap = TRAPS[what]
    settings = SCHEDULES[schedule]
    if settings.get("in_flight") and trap.method == "drained":
        pytest.skip("nothing drains in this schedule")
    recipe = recipe_of(tmp_path, "run", schedule=settings)
    with monkeypatch.context() as patched:
        failure = fails(recipe, Armed(trap, error, patched), Watched(patched))
    assert not getattr(failure, "__notes__", ()), "nothing else failed"
    view = RunView(tmp_path / "run")
    end = view.all_events[-1]
    assert (view.status, end.kind) == ("failed", "end")
    assert "on purpose" in end.body.reason
    assert not is_locked(view.path / "run.lock")
    assert not list(view.path.glob("checkpoints/.*")), "nothing half-written"
    again = resume(view.path)
    assert (again.status, again.steps) == ("done", 4)
    if not settings.get("in_flight"):
        assert compare_runs(reference, again.path, weights=WEIGHTS) == []


REAL_TRAPS = {
    "sampling": Trap(NativeEngine, "generate"),
    "the reward": Trap(RewardJudge, "judge"),
    "the per-step program": Trap(Worker, "run"),
    "publication": Trap(InProcessSync, "publish"),
    "a checkpoint": Trap(RunStore, "checkpoint"),
    "a phase's begin": Trap(Phase, "begin", ("warmup", 1)),
}


@pytest.mark.parametrize("schedule", [*SCHEDULES])
@pytest.mark.parametrize("what", REAL_TRAPS)
@pytest.mark.slow
def test_a_phase_that_raises_with_engine_learner_and_processes(what, schedule, tmp_path, monkeypatch):  # pitfall 31
    recipe = recipe_of(tmp_path, "run", REAL, **in_processes(False), schedule=SCHEDULES[schedule])
    with monkeypatch.context() as patched:
        fails(recipe, Armed(REAL_TRAPS[what], Fault, patched), Watched(patched))
    assert RunView(tmp_path / "run").status == "failed"
    assert resume(tmp_path / "run").status == "done"


@pytest.mark.parametrize("what", ["the reward", "the per-step program"])
def test_a_phase_that_raises_beside_others_in_flight(what, tmp_path, monkeypatch):  # pitfall 31
    recipe = recipe_of(tmp_path, "run", REAL, **in_processes(False), schedule=SCHEDULES["in flight"])
    fails(recipe, Armed(REAL_TRAPS[what], Fault, monkeypatch), Watched(monkeypatch))
    assert RunView(tmp_path / "run").status == "failed"


# --- failures after the first ----------------------------------------------------------------------------------------


def test_what_fails_after_the_first_cause_is_a_note_of_it(tmp_path, monkeypatch):
    """Admission raises, then the state cannot be saved, then a close fails: one chain, and the end is recorded."""
    watched = Watched(monkeypatch)
    watched.at_close = [0]
    saving = Armed(Trap(RunStore, "checkpoint"), Fault, monkeypatch)
    admit = Armed(Trap(Pool, "admit"), Fault, monkeypatch)

    def observe(event: Event) -> None:
        admit(event)
        saving.armed = admit.armed

    with nothing_left(), pytest.raises(Fault) as caught:
        start(recipe_of(tmp_path, "run", save={"every": None}), observer=observe)
    assert caught.value is admit.raised
    assert (admit.fired, saving.fired) == (1, 1)
    assert caught.value.__notes__ == [
        "Saving the state failed as well: Fault: on purpose",
        "the reward processes failed to close: OSError: close 0",
    ]
    assert "Fault: on purpose" in RunView(tmp_path / "run").all_events[-1].body.reason


def test_a_state_that_is_asked_for_and_not_saved_is_no_interruption(tmp_path, monkeypatch):  # pitfall 34
    """Interrupted says that the state is saved."""
    import os
    import signal

    saving = Armed(Trap(RunStore, "checkpoint"), Fault, monkeypatch)

    def observe(event: Event) -> None:
        if event.kind == "step" and (event.phase, event.step) == ("main", 1):
            saving.armed = True
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Fault, match="on purpose"):
        start(recipe_of(tmp_path, "run", save={"every": None}), observer=observe)
    assert RunView(tmp_path / "run").status == "failed"


@pytest.mark.parametrize("kind", ["step", "eval", "checkpoint", "error", "end"])
def test_an_observer_that_raises(kind, tmp_path, monkeypatch):
    """What watches a run is called in its midst: if it raises, the run ends as with any failure; after another, it does
    not hide it."""
    watched = Watched(monkeypatch)
    reward = Armed(Trap(RewardJudge, "judge"), Fault, monkeypatch)

    def observe(event: Event) -> None:
        if kind in ("error", "end"):
            reward(event)
        if event.kind == kind:
            raise LookupError("the observer")

    with nothing_left(), pytest.raises((LookupError, NodeError)) as caught:
        start(recipe_of(tmp_path, "run"), observer=observe)
    watched.check()
    first = first_cause(caught.value)
    if kind in ("error", "end"):
        assert first is reward.raised
        assert any("LookupError: the observer" in note for note in caught.value.__notes__)
    else:
        assert isinstance(first, LookupError)
    view = RunView(tmp_path / "run")
    assert view.status == "failed"
    assert not is_locked(view.path / "run.lock")


def test_a_record_that_cannot_be_closed_does_not_hide_the_cause(tmp_path, monkeypatch):
    reward = Armed(Trap(RewardJudge, "judge"), Fault, monkeypatch)
    close = RunStore.close

    def failing(store: RunStore) -> None:
        close(store)
        raise StoreError("no room")

    monkeypatch.setattr(RunStore, "close", failing)
    with pytest.raises(NodeError) as caught:
        start(recipe_of(tmp_path, "run"), observer=reward)
    assert caught.value.__notes__ == ["Closing the record failed as well: StoreError: no room"]
    assert not is_locked(tmp_path / "run" / "run.lock")


# --- the engine's thread ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [RuntimeError, SystemExit])
def test_an_engine_whose_thread_is_hit(what, tmp_path, monkeypatch):  # pitfalls 4, 32
    """An exception inside fails every request; an exit ends the thread. Nobody waits for either."""
    recipe = recipe_of(tmp_path, "run", REAL, schedule={"max_staleness": 1})
    with monkeypatch.context() as patched:
        failure = fails(recipe, Armed(Trap(Scheduler, "step"), what, patched), Watched(patched))
    assert isinstance(failure, EngineError)
    assert f"{what.__name__}('on purpose')" in str(failure)
    assert RunView(tmp_path / "run").status == "failed"
    assert resume(tmp_path / "run").status == "done"


def test_an_exit_in_a_task_breaks_nothing_off(tmp_path, monkeypatch):
    """An exit that something on the loop raises would stop the loop in the middle of the run; all is closed."""
    watched = Watched(monkeypatch)

    def observe(event: Event) -> None:
        if event.kind == "step" and (event.phase, event.step) == ("main", 1):
            asyncio.get_running_loop().call_soon(exits)

    def exits() -> None:
        raise SystemExit(7)

    with nothing_left(), pytest.raises(SystemExit):
        start(recipe_of(tmp_path, "run", FAKES), observer=observe)
    watched.check()
    assert not is_locked(tmp_path / "run" / "run.lock")
