"""The driver on fakes: what it records, and that stopping anywhere and going on changes nothing."""

import asyncio
from collections.abc import Callable

import pytest
from attempts import create, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.config.load import recipe_from_mapping
from stretto.errors import EngineError, Interrupted, PoolError, ResumeError, RewardError
from stretto.runtime.attempt import evaluate_only
from stretto.runtime.build import Given, prepare
from stretto.runtime.checkpoint import position_after
from stretto.store import Event, RunStore, RunView, compare_runs
from stretto.types import Prompt, Trajectory

WEIGHTS = ("weights.json",)


def by_tokens(prompt: Prompt, trajectory: Trajectory) -> float:
    return float(trajectory.token_ids_T.sum() % 7)


def drops_some(prompt: Prompt, trajectory: Trajectory) -> float:
    if trajectory.key.draw % 5 == 3:
        raise ValueError("no reward for this one")
    return by_tokens(prompt, trajectory)


def job_of(judge: Callable[[Prompt, Trajectory], float] = by_tokens, /, **sections: object):
    tree = {
        "steps": 5,
        "engine": {"type": "fake"},
        "backend": {"type": "fake", "lr": 0.1},
        "prompts": {"type": "builtin", "name": "addition", "max": 4},
        "schedule": {"groups_per_step": 3},
        "sampling": {"n": 2, "max_tokens": 4},
        "reward": {"use": "python:given", "workers": 0},
        "evaluate": {"every": 2},
        "save": {"every": 2},
    }
    for name, value in sections.items():
        tree[name] = {**tree[name], **value} if isinstance(value, dict) and name in tree else value
    return prepare(recipe_from_mapping(tree), Given(reward=judge))


OVER = {"over_sample": 1.7, "deterministic": False}
CARRY = {**OVER, "rest": "carry", "max_staleness": 2, "in_flight": "keep"}


@pytest.mark.parametrize("schedule", [OVER, CARRY])
def test_over_sampled_steps_are_recorded_with_what_they_took(tmp_path, schedule):
    job = job_of(schedule=schedule, engine={"type": "fake", "delay_s": 0.002, "spread": 1.0})
    view = run(job, create(job, tmp_path))
    assert (view.status, view.steps) == ("done", 5)
    assert [len(view.groups(step=step)) for step in range(5)] == [3] * 5
    assert max(value for _, value in view.history("staleness/max")) <= schedule.get("max_staleness", 0)
    left = [e.body for e in view.events if e.kind == "group" and "schedule.over_sample" in e.body.why]
    assert len(left) > 0 if "rest" not in schedule else left == []
    store = RunStore.open(tmp_path / "run", lambda checkpoint: position_after(checkpoint, job))
    store.close()
    with pytest.raises(ResumeError, match=r"another schedule\.over_sample"):
        position_after(RunView(tmp_path / "run").checkpoint().taken, job_of())


STOPS = st.lists(st.integers(1, 60), min_size=1, max_size=3)


def stopping(after: int):
    """An observer that asks for a stop at an event, by its number."""
    seen = 0

    def observer(event: Event, stop: asyncio.Event) -> None:
        nonlocal seen
        seen += 1
        if seen == after:
            stop.set()

    return observer


def test_a_run_records_steps_evaluations_checkpoints_and_its_end(tmp_path):
    # pitfall 11: the last step is saved and evaluated
    view = run(job_of(), create(job_of(), tmp_path))
    assert (view.status, view.steps) == ("done", 5)
    assert [e.step for e in view.evaluations()] == [0, 2, 4, 5]
    assert [e.step for e in view.events if e.kind == "checkpoint"] == [2, 4, 5]
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["step-4", "step-5"]
    assert [e.body.version for e in view.events if e.kind == "publish"] == [0, 1, 2, 3, 4, 5]
    assert len(view.groups()) == 15
    assert [g.group.draw for g in view.groups(step=2)] == [6, 7, 8]
    assert [e.body.id for e in view.events if e.kind == "node" and e.step == 0] == [
        "batch",
        "credit",
        "learn",
        "report",
    ]
    assert view.metrics["batch/trajectories"] == 6


@pytest.mark.parametrize("staleness", [0, 1])
def test_staleness_is_exact_when_deterministic(tmp_path, staleness):
    view = run(job_of(schedule={"max_staleness": staleness}), create(job_of(), tmp_path))
    for recorded in view.groups():
        step = recorded.group.draw // 3
        versions = {s.version for t in recorded.group.trajectories for s in t.versions}
        assert versions == {max(0, step - staleness)}


def overlapped(staleness: int, judge: Callable[[Prompt, Trajectory], float] = by_tokens, **sections: object):
    """Completions that take very different times, and are under way when weights change."""
    return job_of(
        judge,
        schedule={"max_staleness": staleness, "in_flight": "keep", "deterministic": False},
        engine={"type": "fake", "delay_s": 0.004, "spread": 1.0},
        **sections,
    )


def spans_of(view: RunView):
    """The step and the versions of every trajectory that was trained."""
    return [
        (recorded.step, [s.version for s in t.versions])
        for recorded in view.groups()
        for t in recorded.group.trajectories
    ]


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_sequences_go_on_while_weights_change_and_every_token_says_by_which_it_is(tmp_path, staleness):
    # pitfall 9
    job = overlapped(staleness, steps=12)
    view = run(job, create(job, tmp_path))
    assert (view.status, view.steps) == ("done", 12)
    spans = spans_of(view)
    assert all(0 <= step - version <= staleness for step, versions in spans for version in versions)
    assert any(len(versions) > 1 for _, versions in spans)
    assert max(step - versions[0] for step, versions in spans) == staleness
    for e in view.events:
        if e.kind == "step":
            lags = [
                e.step - s.version for g in view.groups(step=e.step) for t in g.group.trajectories for s in t.versions
            ]
            tokens = [s.length for g in view.groups(step=e.step) for t in g.group.trajectories for s in t.versions]
            assert e.body.metrics["staleness/max"] == max(lags)
            mean = sum(lag * n for lag, n in zip(lags, tokens, strict=True)) / sum(tokens)
            assert e.body.metrics["staleness/mean"] == pytest.approx(mean)


@pytest.mark.parametrize("until", [False, True])
def test_a_stop_during_an_evaluation_leaves_it_to_the_resume(tmp_path, until):
    slow = {"type": "fake", "delay_s": 0.02, "slots": 4}
    warmup = {"max_steps": 4, "groups_per_step": 4, "evaluate": {"every": 2}}
    warmup |= {"until": {"held_out/reward": -1.0}} if until else {}
    job = job_of(engine=slow, evaluate={"every": 2, "at_start": False}, warmup=warmup, prompts={"max": 9})
    whole = run(job, create(job, tmp_path, "whole"))
    store = create(job, tmp_path, "stopped")
    for phase, step in (("warmup", 2), ("main", 2), ("main", 5)):

        def observer(event: Event, stop: asyncio.Event, at=(phase, step)) -> None:
            if event.kind == "step" and (event.phase, event.step + 1) == at:
                asyncio.get_running_loop().call_later(0.03, stop.set)

        with pytest.raises(Interrupted):
            run(job, store, observer)
        view = RunView(store.path)
        assert all((e.phase, e.step) != (phase, step) for e in view.events if e.kind == "eval")
        store = RunStore.open(store.path)
    view = run(job, store)
    assert view.status == "done" and compare_runs(whole.path, view.path, weights=WEIGHTS) == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=STOPS, staleness=st.sampled_from([1, 3]), dropping=st.booleans())
def test_the_bound_holds_in_flight_wherever_a_run_is_stopped(tmp_path_factory, stops, staleness, dropping):
    # pitfalls 5, 7, 9
    folder = tmp_path_factory.mktemp("runs")
    job = overlapped(
        staleness,
        drops_some if dropping else by_tokens,
        reward={"on_error": "drop", "max_dropped": 1.0} if dropping else {},
        save={"every": 2},
    )
    store = create(job, folder, "run")
    for stop_after in stops:
        try:
            view = run(job, store, stopping(stop_after))
            break
        except Interrupted:
            store = RunStore.open(store.path)
    else:
        view = run(job, store)
    assert view.status == "done"
    spans = spans_of(view)
    assert all(0 <= step - version <= staleness for step, versions in spans for version in versions)
    trained = [e for e in view.events if e.kind == "step"]
    assert [e.step for e in trained] == list(range(5))
    draws = [recorded.group.draw for recorded in view.groups()]
    assert len(set(draws)) == len(draws)


def test_a_data_set_smaller_than_a_batch_and_a_smaller_last_step(tmp_path):
    # pitfalls 5, 12, 13: 20 prompts to train on, 3 a step, one epoch: 6 whole steps and one of 2
    job = job_of(steps=None, epochs=1)
    view = run(job, create(job, tmp_path))
    assert (view.status, view.steps) == ("done", 7)
    assert view.metrics["batch/groups"] == 2
    small = job_of(steps=2, schedule={"groups_per_step": 50})
    assert run(small, create(small, tmp_path, "small")).metrics["batch/groups"] == 50


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=STOPS, staleness=st.sampled_from([0, 1]), dropping=st.booleans(), warmup=st.booleans())
def test_stopping_anywhere_and_going_on_gives_the_same_bits(tmp_path_factory, stops, staleness, dropping, warmup):
    # pitfalls 6, 7, 8, 9, 36
    folder = tmp_path_factory.mktemp("runs")
    job = job_of(
        drops_some if dropping else by_tokens,
        schedule={"max_staleness": staleness},
        reward={"on_error": "drop", "max_dropped": 1.0} if dropping else {},
        save={"every": None},
        warmup={"max_steps": 3, "groups_per_step": 4, "evaluate": {"every": 2}} if warmup else None,
    )
    run(job, create(job, folder, "whole"))
    store = create(job, folder, "stopped")
    for stop_after in stops:
        try:
            view = run(job, store, stopping(stop_after))
            break
        except Interrupted:
            view = RunView(store.path)
            assert view.status == "interrupted"
            assert f"stretto resume {store.path}" in view.all_events[-1].body.reason
        store = RunStore.open(store.path)
    else:
        view = run(job, store)
    assert view.status == "done"
    assert compare_runs(folder / "whole", folder / "stopped", weights=WEIGHTS) == []


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_stop_is_heeded_at_the_next_step_whatever_waits(tmp_path, staleness):
    job = job_of(steps=200, schedule={"max_staleness": staleness})
    with pytest.raises(Interrupted, match=f"stretto resume {tmp_path}/run"):
        run(job, create(job, tmp_path), lambda event, stop: stop.set() if event.kind == "step" else None)
    assert RunView(tmp_path / "run").steps == 1


def test_a_failing_reward_ends_the_run_and_what_was_finished_is_saved(tmp_path):
    # pitfall 2
    job = job_of(drops_some)
    with pytest.raises(RewardError, match="no reward for this one"):
        run(job, create(job, tmp_path))
    view = RunView(tmp_path / "run")
    assert view.status == "failed"
    assert "no reward for this one" in view.errors()[0].message
    assert view.checkpoint().taken is not None


def test_evaluations_and_checkpoints_by_epochs_and_minutes(tmp_path):
    job = job_of(steps=14, evaluate={"every": "0.5 epochs"}, save={"every": "0.00001 minutes", "keep_last": 99})
    view = run(job, create(job, tmp_path))
    # 20 prompts to train on, 3 a step: half a pass is over after steps 4, 7, 10 and 14
    assert [e.step for e in view.evaluations()] == [0, 4, 7, 10, 14]
    assert [e.step for e in view.events if e.kind == "checkpoint"] == list(range(1, 15))


def test_a_file_in_the_run_asks_for_a_checkpoint_or_an_evaluation_now(tmp_path):
    job = job_of(save={"every": None}, evaluate={"every": None})

    def asking(event: Event, stop: asyncio.Event) -> None:
        if event.kind == "step" and event.step in (1, 2):
            (tmp_path / "run" / {1: "save.now", 2: "evaluate.now"}[event.step]).touch()

    view = run(job, create(job, tmp_path), asking)
    assert [e.step for e in view.events if e.kind == "checkpoint"] == [2, 5]
    assert [e.step for e in view.evaluations()] == [0, 3, 5]
    assert not list((tmp_path / "run").glob("*.now"))


def test_an_evaluation_that_fails_is_recorded_and_training_goes_on(tmp_path):
    """The others are made; what waits for its metric is not reached; the next one may succeed."""

    def sometimes(prompt, trajectory, context):
        if context.phase == "evaluation" and context.step in (2, 5):
            raise ValueError("no luck")
        return by_tokens(prompt, trajectory)

    job = job_of(sometimes, save={"every": 1, "keep_best": "held_out/accuracy"})
    view = run(job, create(job, tmp_path))
    assert (view.status, view.steps) == ("done", 5)
    assert [e.step for e in view.evaluations()] == [0, 4]
    failed = view.errors()
    assert [e.where for e in failed] == [f"evaluation held_out after step {step}" for step in (2, 5)]
    assert all(e.is_evaluation and "no luck" in e.message and e.type == "RewardError" for e in failed)
    assert RunStore.open(view.path).found.taken.header.evaluated_at == 4


def test_evaluation_only_fails_where_its_reward_does(tmp_path):
    job = job_of(drops_some)
    with pytest.raises(RewardError, match="no reward for this one"):
        asyncio.run(evaluate_only(job, None))


def test_rewards_that_all_fail_end_in_the_reasons(tmp_path):
    def never(prompt: Prompt, trajectory: Trajectory) -> float:
        raise ValueError("always")

    job = job_of(
        never,
        reward={"on_error": "drop", "max_dropped": 1.0},
        schedule={"max_refills": 2},
        evaluate={"every": None, "at_start": False, "at_end": False},
    )
    with pytest.raises(PoolError, match=r"Step 0 could not be filled.*always"):
        run(job, create(job, tmp_path))


def test_the_warmup_stops_when_its_metric_is_reached_and_says_so_when_it_is_not(tmp_path):
    reached = job_of(
        lambda prompt, trajectory: 1.0,
        warmup={"until": {"held_out/accuracy": 0.5}, "max_steps": 50, "groups_per_step": 2, "evaluate": {"every": 2}},
    )
    view = run(reached, create(reached, tmp_path, "reached"))
    ends = {e.phase: e.body for e in view.events if e.kind == "phase" and e.body.state == "end"}
    assert (ends["warmup"].steps, ends["warmup"].reason) == (2, "reached")
    groups = [(event.phase, event.body.draw) for event in view.events if event.kind == "group"]
    assert [draw for phase, draw in groups if phase == "warmup"] == [0, 1, 2, 3]  # none for a third step
    assert [draw for phase, draw in groups if phase == "main"] == list(range(5 * 3)), groups
    assert (ends["main"].steps, ends["main"].reason) == (5, "steps")
    assert view.steps == 5
    never = job_of(
        lambda prompt, trajectory: 0.0,
        warmup={"until": {"held_out/accuracy": 0.5}, "max_steps": 3, "groups_per_step": 2, "evaluate": {"every": 2}},
    )
    view = run(never, create(never, tmp_path, "never"))
    ends = {e.phase: e.body for e in view.events if e.kind == "phase" and e.body.state == "end"}
    assert (ends["warmup"].steps, ends["warmup"].reason) == (3, "missed")


def test_weights_that_nobody_can_sample_from_are_not_saved(tmp_path):
    # pitfall 23: a learning rate that blows the weights up; the step before is not followed by a useless checkpoint
    tree = {
        "steps": 5,
        "backend": {"lr": 1e9, "threads": 1},
        "prompts": {"type": "builtin", "name": "addition", "max": 4},
        "schedule": {"groups_per_step": 3},
        "sampling": {"n": 2, "max_tokens": 3},
        "reward": {"use": "python:given", "workers": 0},
        "evaluate": {"at_start": False, "at_end": False},
    }
    job = prepare(recipe_from_mapping(tree), Given(reward=by_tokens))
    with pytest.raises(EngineError, match=r"training has diverged. Lower the learning rate"):
        run(job, create(job, tmp_path))
    assert RunView(tmp_path / "run").checkpoint().taken is None


def test_a_warmup_takes_turns_whatever_the_schedule_of_the_main_phase(tmp_path):
    job = overlapped(2, warmup={"max_steps": 2, "groups_per_step": 4, "evaluate": {"every": 2}})
    assert [(p.pool.max_staleness, p.in_flight) for p in job.phases] == [(0, "drain"), (2, "keep")]
    for schedule in (OVER, CARRY, {"max_staleness": {0: 0, 2: 1}}):
        job = job_of(schedule=schedule, warmup={"max_steps": 2, "groups_per_step": 3})
        assert (job.phases[0].pool.max_staleness, job.phases[0].pool.over_sample) == (0, None)
    assert run(job, create(job, tmp_path)).status == "done"
