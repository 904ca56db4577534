"""Start-up fails at any registration or is cancelled at any turn of the loop, and closes fail: all is closed in reverse
order, the first cause stays on top, nothing is left, and the run goes on.
"""

import asyncio
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from leftovers import nothing_left
from short_runs import FAKES, REAL, Watched, by_tokens, first_cause, in_processes, recipe_of

import stretto
from stretto.api.audit.auditing import AuditOptions, audit
from stretto.api.runs import evaluate, resume, start
from stretto.config.recipe import Recipe
from stretto.errors import Interrupted, RunError
from stretto.runtime.attempt import attempt
from stretto.runtime.build import Given, prepare
from stretto.runtime.disposer import Disposer
from stretto.runtime.opening import open_parts
from stretto.store import RunSpec, RunStore, RunView
from stretto.store.lock import is_locked

pytestmark = pytest.mark.usefixtures("leaves_nothing")

RECIPES = {"rewards": False, "environment": True}


@cache
def registrations(environment: bool) -> int:
    """How many registrations a start-up has: counted, so that a new one is tried too."""
    changes = {**in_processes(environment)}
    opened: list[str] = []

    class Counting(Disposer):
        def own(self, name, resource, close, **more):
            opened.append(name)
            return super().own(name, resource, close, **more)

    async def main() -> None:
        async with Counting() as disposer:
            await open_parts(prepare(recipe_of(Path("runs"), "counted", **changes), Given()), disposer)

    asyncio.run(main())
    return len(opened)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "point" in metafunc.fixturenames:
        points = [(name, k) for name, environment in RECIPES.items() for k in range(registrations(environment))]
        metafunc.parametrize("point", points, ids=[f"{name}-{k}" for name, k in points])


def check_failed(path: Path, cause: str, steps: int = 0) -> RunView:
    """The record tells the end and its cause, and nobody holds the run."""
    view = RunView(path)
    end = view.all_events[-1]
    assert (view.status, end.kind, view.steps) == ("failed", "end", steps)
    assert cause in end.body.reason
    assert not is_locked(path / "run.lock")
    return view


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_start_that_fails_at_a_registration(point, when, tmp_path, monkeypatch):  # pitfall 31
    name, k = point
    recipe = recipe_of(tmp_path, "run", REAL, **in_processes(RECIPES[name]))
    with monkeypatch.context() as patched:
        watched = Watched(patched)
        setattr(watched, when, k)
        with nothing_left(), pytest.raises(RuntimeError, match="on purpose") as caught:
            start(recipe)
        assert caught.value is watched.failure
        assert len(watched.opened) == k + (when == "after")
        watched.check()
    check_failed(tmp_path / "run", "RuntimeError: on purpose")


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_whose_start_failed_goes_on(name, tmp_path, monkeypatch):
    recipe = recipe_of(tmp_path, "run", **in_processes(RECIPES[name]))
    with monkeypatch.context() as patched:
        Watched(patched).after = 1
        with pytest.raises(RuntimeError, match="on purpose"):
            start(recipe)
    view = resume(tmp_path / "run")
    assert (view.status, view.steps) == ("done", 4)


def test_a_close_that_fails_after_a_good_run(point, tmp_path, monkeypatch):
    name, k = point
    watched = Watched(monkeypatch)
    watched.at_close = [k]
    with pytest.raises(RunError, match=rf"not everything closed in order: .* failed to close: OSError: close {k}$"):
        start(recipe_of(tmp_path, "run", **in_processes(RECIPES[name])))
    watched.check()
    check_failed(tmp_path / "run", "not everything closed in order", steps=4)


def test_closes_that_fail_are_notes_of_the_first_cause(tmp_path, monkeypatch):
    watched = Watched(monkeypatch)
    everything = range(registrations(False))
    watched.at_close, watched.after = everything, everything[-1]
    with pytest.raises(RuntimeError, match="on purpose") as caught:
        start(recipe_of(tmp_path, "run", REAL, **in_processes(False)))
    watched.check()
    notes = caught.value.__notes__
    assert [f"failed to close: OSError: close {k}" in note for k, note in zip(everything[::-1], notes, strict=True)]
    check_failed(tmp_path / "run", "RuntimeError: on purpose")
    trace = next(e.body.traceback for e in RunView(tmp_path / "run").all_events if e.kind == "error")
    assert all(note in trace for note in notes)


def opens_a_session(recipe: Recipe) -> None:
    tree = recipe.model_dump(mode="json", exclude_unset=True, exclude={"warmup", "name", "steps"})
    with stretto.session("grpo", **tree) as s:
        s.train(s.rollout(s.prompts(2)))


ENTRIES: dict[str, Callable[[Recipe], object]] = {
    "resume": lambda recipe: resume(Path(recipe.runs_dir) / "before", ["steps=2"]),
    "fork": lambda recipe: resume(Path(recipe.runs_dir) / "before", ["steps=2"], fork=f"fork-{time.monotonic_ns()}"),
    "evaluate": lambda recipe: evaluate("before", runs_dir=Path(recipe.runs_dir)),
    "session": opens_a_session,
    "audit": lambda recipe: audit(recipe, options=AuditOptions(prompts=2)),
}


@pytest.mark.parametrize(
    "entry", [pytest.param(e, marks=[pytest.mark.slow] if e in ("resume", "fork", "audit") else []) for e in ENTRIES]
)
def test_whatever_opens_parts_closes_them(entry, tmp_path, monkeypatch):  # pitfall 31
    """It fails at every registration that it has, until there is none left to fail at."""
    recipe = recipe_of(tmp_path, "before", **in_processes(False), steps=1, warmup=None)
    start(recipe)
    k, failed = 0, True
    while failed:
        failed = False
        with monkeypatch.context() as patched, nothing_left():
            watched = Watched(patched)
            watched.after = k
            try:
                ENTRIES[entry](recipe)
            except RuntimeError as failure:
                failed = failure is watched.failure
                k += 1
            watched.check()
            assert len(watched.opened) == k
    assert k >= registrations(False), watched.opened


# --- cancelled half way ----------------------------------------------------------------------------------------------


class Turns(asyncio.SelectorEventLoop):
    """An event loop that does something after a turn, by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.at = -1
        self.what = lambda: None

    def _run_once(self) -> None:
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue]
        self.turns += 1
        if self.turns == self.at:
            self.what()


def opened_until(turn: int, devices: dict, environment: bool, folder: Path) -> bool:
    """Open everything and publish, but cancel it after so many turns; whether it was cancelled before the end."""
    job = prepare(recipe_of(folder, "run", devices, **in_processes(environment)), Given())
    loop = Turns()

    async def opening() -> None:
        async with Disposer() as disposer:
            parts = await open_parts(job, disposer)
            await parts.publish(0)

    async def main() -> bool:
        task = asyncio.ensure_future(opening())
        loop.at, loop.what = loop.turns + turn, task.cancel
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("environment", RECIPES.values(), ids=RECIPES)
def test_a_start_that_is_cancelled_at_any_turn(environment, tmp_path, monkeypatch):  # pitfall 31
    turn, cancelled = 0, True
    while cancelled:
        turn += 1
        with monkeypatch.context() as patched, nothing_left():
            watched = Watched(patched)
            cancelled = opened_until(turn, REAL, environment, tmp_path)
            watched.check()
    print(f"cancelled at each of {turn - 1} turns")
    assert turn > 8


@pytest.mark.parametrize("devices", [FAKES, REAL], ids=["fakes", "real"])
@pytest.mark.parametrize("turn", [1, 3, 6])
def test_a_start_that_is_cancelled_early(turn, devices, tmp_path, monkeypatch):
    watched = Watched(monkeypatch)
    assert opened_until(turn, devices, False, tmp_path)
    watched.check()


@pytest.mark.parametrize("turn", [1, 4, 8])
def test_a_start_that_is_asked_to_stop_and_goes_on_later(turn, tmp_path, monkeypatch):
    recipe = recipe_of(tmp_path, "run", **in_processes(False))
    job = prepare(recipe, Given())
    watched, loop = Watched(monkeypatch), Turns()
    spec = RunSpec(hint="run", name="run", config=recipe.model_dump(mode="json"), seed=0, steps=recipe.steps)

    async def main() -> None:
        stop = asyncio.Event()
        loop.at, loop.what = loop.turns + turn, stop.set
        await attempt(job, store, stop)

    with (
        RunStore.create(tmp_path, spec) as store,
        asyncio.Runner(loop_factory=lambda: loop) as runner,
        pytest.raises(Interrupted, match="Stopped by a signal") as caught,
    ):
        runner.run(main())
    watched.check()
    view = RunView(tmp_path / "run")
    assert (view.status, view.steps, view.all_events[-1].body.reason) == ("interrupted", 0, str(caught.value))
    assert (resume(tmp_path / "run").status, first_cause(caught.value)) == ("done", caught.value)


def test_what_is_made_for_nobody_is_closed_too(tmp_path):
    """The backend is made on the learner's thread: cancelled meanwhile, it is closed once it is there."""
    from stretto.runtime.worker import Worker
    from stretto.testing import FakeBackend

    closed: list[str] = []
    making = asyncio.Event()

    class Closing(FakeBackend):
        def close(self) -> None:
            closed.append("backend")

    async def main() -> None:
        import time

        loop = asyncio.get_running_loop()

        def make() -> FakeBackend:
            loop.call_soon_threadsafe(making.set)
            time.sleep(0.1)
            return Closing()

        async def opening() -> None:
            async with Disposer() as disposer:
                worker = Worker()
                disposer.own("the learner", worker, worker.close)
                await worker.open(make)

        task = asyncio.ensure_future(opening())
        await making.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert closed == ["backend"]


def test_the_reward_judges(tmp_path):
    """The recipe of these tests does what it is meant to: the rewards of both sets are asked."""
    view = start(recipe_of(tmp_path, "run", **in_processes(False)))
    assert {e.body.name for e in view.events if e.kind == "eval"} == {"held_out", "second"}
    assert all(t.reward == by_tokens(g.group.prompt, t) for g in view.groups() for t in g.group.trajectories)
