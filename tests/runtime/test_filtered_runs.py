"""Runs with filters and orders of their own, on fakes: what they record, and that stopping anywhere changes nothing."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping

import pytest
from attempts import create, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stretto
from stretto.config.load import recipe_from_mapping
from stretto.environments.rewards import Reward
from stretto.errors import ConfigError, Interrupted, PoolError
from stretto.runtime.build import Given, prepare
from stretto.runtime.filters import GroupFilter
from stretto.store import Event, RunStore, RunView, compare_runs
from stretto.types import Group, Prompt, Trajectory

BASE = {
    "steps": 5,
    "engine": {"type": "fake"},
    "backend": {"type": "fake", "lr": 0.1},
    "prompts": {"type": "builtin", "name": "addition", "max": 2, "held_out": 0},
    "schedule": {"groups_per_step": 3},
    "sampling": {"n": 2, "max_tokens": 4},
    "reward": {"use": "python:given", "workers": 0},
}


def even(prompt: Prompt, trajectory: Trajectory) -> float:
    """0 or 1, so that half of the groups of two are constant."""
    return float(trajectory.token_ids_T.sum() % 2)


def not_every_fifth(group: Group) -> bool | str:
    return "every_fifth" if group.draw % 5 == 4 else True


def job_of(reward: Reward | Mapping[str, Reward] = even, use: GroupFilter | None = None, /, **sections: object):
    tree = dict(BASE)
    for name, value in sections.items():
        tree[name] = {**tree[name], **value} if isinstance(value, dict) and name in tree else value
    return prepare(recipe_from_mapping(tree), Given(reward=reward, filter=use))


def test_filtered_groups_are_replaced_counted_and_kept_in_the_record(tmp_path):
    job = job_of(even, not_every_fifth, filter={"zero_variance": True, "use": "python:given"})
    view = run(job, create(job, tmp_path))
    trained, everything = view.groups(), view.groups(filtered=True)
    assert (view.steps, len(trained)) == (5, 15)
    assert all(len({t.reward for t in g.group.trajectories}) == 2 and g.group.draw % 5 != 4 for g in trained)
    assert [g.group.draw for g in everything] == list(range(len(everything)))
    filtered = {g.group.draw: g for g in everything if g.why}
    assert len(filtered) == len(everything) - 15
    for draw, g in filtered.items():
        constant = len({t.reward for t in g.group.trajectories}) == 1
        assert g.why == (f"every attempt has reward {g.group.trajectories[0].reward:g}" if constant else "every_fifth")
        assert constant or draw % 5 == 4
    bodies = {e.body.draw: e.body for e in view.events if e.kind == "group" and e.body.state == "filtered"}
    assert {draw: (b.why, b.n) for draw, b in bodies.items()} == {draw: (g.why, 2) for draw, g in filtered.items()}
    assert all(b.reward_mean in (0.0, 0.5, 1.0) for b in bodies.values())
    totals = Counter({name: sum(v for _, v in view.history(name)) for name in view.metrics})
    assert totals["batch/draws"] == len(everything)
    by_why = Counter("use" if g.why == "every_fifth" else "zero_variance" for g in filtered.values())
    assert totals["filter/zero_variance"] == by_why["zero_variance"] > 0
    assert totals["filter/use"] == totals["filter/use/every_fifth"] == by_why["use"] > 0
    for step, mean in view.history("filter/mean_reward"):
        rewards = [t.reward for g in everything if g.step == step for t in g.group.trajectories]
        assert mean == sum(rewards) / len(rewards)


def test_a_warm_up_and_evaluations_are_not_filtered(tmp_path):
    job = job_of(
        filter={"zero_variance": True},
        warmup={"max_steps": 2, "groups_per_step": 4, "evaluate": {"every": 1}},
        prompts={"held_out": 0.3},
        evaluate={"every": 2},
    )
    view = run(job, create(job, tmp_path))
    assert len(view.groups("warmup", filtered=True)) == len(view.groups("warmup")) == 8
    assert {e.body.n for e in view.evaluations()} == {3}


def test_a_filter_that_keeps_nothing_ends_in_the_rewards_it_saw(tmp_path):
    # pitfall 30
    def hard(prompt: Prompt, trajectory: Trajectory) -> float:
        return 0.0

    job = job_of(hard, filter={"zero_variance": True}, schedule={"max_refills": 4})
    with pytest.raises(PoolError, match=r"15 of its 15 draws.*zero_variance 15\. Their rewards: all attempts 0 in 15"):
        run(job, create(job, tmp_path))
    view = RunView(tmp_path / "run")
    assert (view.status, view.steps, len(view.groups(filtered=True))) == ("failed", 0, 15)


def test_a_run_whose_cap_was_spent_goes_on_with_a_larger_one(tmp_path):
    def rarely(prompt: Prompt, trajectory: Trajectory) -> float:
        return float(trajectory.key.sample) if trajectory.key.draw % 6 == 0 else 0.0

    def job(max_refills: int):
        return job_of(rarely, filter={"zero_variance": True}, schedule={"max_refills": max_refills})

    run(job(9), create(job(9), tmp_path, "whole"))
    with pytest.raises(PoolError, match=r"Step 0 could not be filled.*all attempts 0 in"):
        run(job(2), create(job(2), tmp_path, "capped"))
    view = run(job(9), RunStore.open(tmp_path / "capped"))
    assert view.status == "done"
    assert compare_runs(tmp_path / "whole", tmp_path / "capped", weights=("weights.json",)) == []


STOPS = st.lists(st.integers(1, 60), min_size=1, max_size=3)
VARIANTS = {
    "filter": {"filter": {"zero_variance": True}},
    "success": {"order": {"type": "success"}},
    "success at once": {"order": {"type": "success", "first_pass": False, "newest": 1.0}},
    "both": {"filter": {"zero_variance": True, "use": "python:given"}, "order": {"type": "success"}},
    "difficulty": {"order": {"type": "difficulty", "key": "answer", "passes": 1.5}},
}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=STOPS, staleness=st.sampled_from([0, 1]), variant=st.sampled_from(sorted(VARIANTS)))
def test_stopping_anywhere_and_going_on_gives_the_same_bits(tmp_path_factory, stops, staleness, variant):
    # pitfalls 8, 36
    folder = tmp_path_factory.mktemp("runs")
    sections = {"schedule": {"max_staleness": staleness}, "steps": 8, **VARIANTS[variant]}
    job = job_of(even, not_every_fifth, **sections)
    run(job, create(job, folder, "whole"))
    store = create(job, folder, "stopped")
    for stop_after in stops:
        seen = 0

        def observer(event: Event, stop: asyncio.Event, stop_after: int = stop_after) -> None:
            nonlocal seen
            seen += 1
            if seen == stop_after:
                stop.set()

        try:
            run(job, store, observer)
            break
        except Interrupted:
            store = RunStore.open(store.path)
    else:
        run(job, store)
    assert compare_runs(folder / "whole", folder / "stopped", weights=("weights.json",)) == []


def test_success_draws_prompts_that_are_half_solved_more_often(tmp_path):
    def by_prompt(prompt: Prompt, trajectory: Trajectory) -> float:
        known = {"0+0": 1.0, "2+2": 0.0}  # one is solved, one is out of reach
        return known.get(prompt.uid, float(trajectory.key.sample))

    job = job_of(by_prompt, order={"type": "success", "floor": 0.01}, steps=40, schedule={"max_staleness": 1})
    view = run(job, create(job, tmp_path))
    counts = Counter(g.group.prompt.uid for g in view.groups())
    assert sum(counts.values()) == 120
    assert counts["0+0"] <= 4 and counts["2+2"] <= 4
    assert all(counts[uid] >= 10 for uid in counts if uid not in ("0+0", "2+2"))


def test_difficulty_goes_from_easy_to_hard(tmp_path):
    job = job_of(order={"type": "difficulty", "key": "answer", "spread": 0}, steps=None, epochs=2)
    view = run(job, create(job, tmp_path))
    answers = [int(g.group.prompt.data["answer"]) for g in view.groups()]
    assert answers[:9] == sorted(answers[:9])
    assert Counter(answers) == {0: 2, 1: 4, 2: 6, 3: 4, 4: 2}  # every prompt once a pass


def third(prompt: Prompt, trajectory: Trajectory) -> float:
    return float(trajectory.token_ids_T.sum() % 3 == 0)


def test_success_and_filter_may_look_at_different_rewards(tmp_path):
    """One of two rewards decides what is dropped, the other what is a success; a name that is none is refused."""
    parts = {"use": None, "parts": {"even": {"use": "python:even"}, "third": {"use": "python:third"}}}
    sections = {"reward": parts, "filter": {"zero_variance": True, "score": "even"}, "steps": 1, "prompts": {"max": 5}}
    functions = {"even": even, "third": third}
    job = job_of(functions, order={"type": "success", "score": "third"}, **sections)
    view = run(job, create(job, tmp_path))
    state = json.loads((tmp_path / "run/checkpoints/step-1/state.json").read_text())
    found = view.groups(filtered=True)
    assert any(g.why for g in found) and len(found) <= 36  # all of the first pass
    for g in found:
        assert (len({t.rewards["even"] for t in g.group.trajectories}) == 1) == bool(g.why)
    rates = [sum(t.rewards["third"] for t in g.group.trajectories) / 2 for g in found]
    assert sorted(state["order"]["rates"].values()) == sorted(rates) and len(set(rates)) > 1
    with pytest.raises(ConfigError, match=r"order\.score='thrid' is none of the rewards.*Did you mean 'third'"):
        job_of(functions, order={"type": "success", "score": "thrid"}, **sections)


def test_success_without_rewards_ends_the_run(tmp_path):
    job = job_of(order={"type": "success"}, algorithm={"type": "sft"})
    with pytest.raises(PoolError, match=r"order\.type=success follows rewards, and no attempt of draw 0 has one"):
        run(job, create(job, tmp_path))


def test_a_function_is_passed_to_train_and_asked_for_on_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def first_is_even(group: Group) -> bool:
        return int(group.trajectories[0].token_ids_T[-1]) % 2 == 0

    sections = {name: BASE[name] for name in ("engine", "backend", "schedule", "sampling")}
    prompts = [f"{a}+{a}=" for a in range(5)]
    made = stretto.train("grpo", prompts=prompts, reward=even, filter=first_is_even, steps=2, **sections)
    assert all(first_is_even(group) for group in made.samples())
    assert made.metrics["filter/use"] >= 0
    with pytest.raises(stretto.StrettoError, match=r"filter=\.\.\."):
        stretto.resume(made.name, prompts=prompts, reward=even, overrides=["steps=4"])
    more = stretto.resume(made.name, prompts=prompts, reward=even, filter=first_is_even, overrides=["steps=4"])
    assert more.view.steps == 4


def test_a_session_tells_what_the_filter_keeps_and_refuses_to_follow_success():
    with stretto.session({**BASE, "filter": {"zero_variance": True}}, reward=even) as s:
        groups = s.rollout(s.prompts(9))
        kept = [group for group in groups if s.keeps(group)]
        assert 0 < len(kept) < 9
        assert all(len({t.reward for t in group.trajectories}) == 2 for group in kept)
    with pytest.raises(stretto.StrettoError, match=r"order\.type=success follows what comes of a run's draws"):
        stretto.session({**BASE, "order": {"type": "success"}}, reward=even)
