"""Which groups a filter drops, in which words, and what a user's function may do."""

import json
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.config.filters import LengthRange, RewardRange
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError, PoolError
from stretto.plane.local import LocalPlane
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped, drop_metrics, told_rewards
from stretto.runtime.filters import Filter, filter_of
from stretto.runtime.orders import success_rates
from stretto.runtime.pool import Taken
from stretto.runtime.recording import batch_metrics
from stretto.testing import make_group
from stretto.types import Group, Key

rewards_of = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]), min_size=1, max_size=6)


def judge(filter: Filter, group: Group) -> Dropped | None:
    return filter.judge(group.draw, {"g": group})


def recipe(**sections: object):
    return recipe_from_mapping({"steps": 1, "algorithm": {"type": "grpo"}, **sections})


@given(rewards_of)
def test_zero_variance_is_equal_rewards_to_the_bit(rewards):
    dropped = judge(Filter(zero_variance=True), make_group(3, rewards))
    assert (dropped is not None) == (len(set(rewards)) == 1)
    if dropped is not None:
        assert (dropped.kind, dropped.rewards) == ("zero_variance", tuple(rewards))
        assert dropped.scores == {"": tuple(rewards), "reward": tuple(rewards)}
        assert Dropped.from_json(json.loads(json.dumps(dropped.to_json()))) == dropped
        assert dropped.why == f"every attempt has reward {rewards[0]:g}"


def test_filters_look_at_the_reward_before_a_charge_and_not_at_what_is_only_compared_with():
    plain = make_group(0, (1.0, 1.0, 0.0))
    infos = ({"uncharged": 1.0}, {"uncharged": 1.0}, {"greedy": True})
    rewards = (1.0, 0.25, 0.0)
    group = replace(
        plain,
        trajectories=tuple(
            replace(t, reward=r, info=i) for t, r, i in zip(plain.trajectories, rewards, infos, strict=True)
        ),
    )
    drawn = Drawn.of(0, {"g": group}, LocalPlane())
    assert drawn.scores[""] == (1.0, 1.0)
    assert judge(Filter(reward=RewardRange(min=1.0)), group) is None
    assert judge(Filter(zero_variance=True), group) is None  # the greedy attempt differs: the others are taught by it
    order = recipe(order={"type": "success"}).order
    assert success_rates(order, Taken(drawn=(drawn,), dropped={})) == {0: 1.0}
    metrics = batch_metrics([drawn])
    assert (metrics["reward/mean"].value, metrics["reward/min"].value) == (0.625, 0.25)
    assert metrics["batch/length"].value == plain.trajectories[0].num_written
    assert metrics["batch/written_tokens"].value == sum(t.num_written for t in plain.trajectories)


def test_zero_variance_is_told_by_model_when_several_play():
    a, b = make_group(0, (1.0, 1.0)).trajectories, make_group(0, (0.0, 0.0)).trajectories
    others = [replace(t, key=Key(0, t.key.sample, 0, "other")) for t in b]
    both = Group(draw=0, prompt=make_group(0).prompt, trajectories=(*a, *others))
    assert judge(Filter(zero_variance=True), both) is not None
    one_varies = replace(both, trajectories=(*a, others[0], replace(others[1], reward=0.5)))
    assert judge(Filter(zero_variance=True), one_varies) is None


@given(rewards_of, st.sampled_from([None, 0.0, 0.1, 0.3]), st.sampled_from([None, 0.3, 0.5, 1.0]))
def test_a_mean_reward_on_a_bound_is_kept(rewards, low, high):
    dropped = judge(Filter(reward=RewardRange(min=low, max=high)), make_group(0, rewards))
    exact = float(sum(map(Fraction, rewards)) / len(rewards))
    assert (dropped is None) == ((low is None or low <= exact) and (high is None or exact <= high))
    assert dropped is None or dropped.kind == "reward"


def test_a_constant_group_on_a_bound_is_kept_whatever_its_sum_rounds_to():
    assert judge(Filter(reward=RewardRange(min=0.1, max=0.1)), make_group(0, (0.1,) * 10)) is None


def test_lengths_are_means_over_attempts_and_words_say_which_bound():
    group = make_group(0, (0.0, 1.0), length=6)
    assert judge(Filter(length=LengthRange(min=6, max=6)), group) is None
    low, high = Filter(length=LengthRange(min=7)), Filter(length=LengthRange(max=5.5))
    assert judge(low, group).why == "mean length 6 is below filter.length.min=7"
    assert judge(high, group).why == "mean length 6 is above filter.length.max=5.5"
    assert judge(Filter(reward=RewardRange(min=0.6)), group).why == "mean reward 0.5 is below filter.reward.min=0.6"


def test_a_function_keeps_drops_or_names_its_reason():
    group = make_group(4)
    assert judge(Filter(function=lambda g: True), group) is None
    assert judge(Filter(function=lambda g: np.bool_(True)), group) is None
    assert judge(Filter(function=lambda g: False), group).why == "no reason given"
    dropped = judge(Filter(function=lambda g: f"draw_{g.draw}"), group)
    assert (dropped.kind, dropped.why, dropped.scores[""]) == ("use", "draw_4", (0.0, 1.0))


async def late(group: Group) -> bool:
    return True


@pytest.mark.parametrize("answer", [None, 1, "", late(make_group())])
def test_another_answer_of_a_function_ends_the_run(answer):
    with pytest.raises(PoolError, match=r"filter\.use=mine:f gave .* for draw 0, and it must give true"):
        judge(Filter(function=lambda g: answer, name="mine:f"), make_group(0))


def test_what_a_function_raises_ends_the_run_and_is_told():
    def broken(group: Group) -> bool:
        raise KeyError("level")

    with pytest.raises(PoolError, match=r"filter\.use=mine:f failed on draw 2 .*KeyError: 'level'; .*test_filters"):
        judge(Filter(function=broken, name="mine:f"), make_group(2))


def test_a_named_reward_is_looked_at_in_place_of_the_total():
    """DAPO's condition is on right answers; a penalty of length beside them is no reason to keep a group."""
    group = make_group(0, (1.0, 0.7))
    rows = [replace(t, rewards={"correct": 1.0, "short": t.reward - 1.0}) for t in group.trajectories]
    group = replace(group, trajectories=tuple(rows))
    assert judge(Filter(zero_variance=True), group) is None
    dropped = judge(Filter(zero_variance=True, score="correct"), group)
    assert (dropped.why, dropped.rewards) == ("every attempt has correct 1", (1.0, 1.0))
    assert dropped.scores[""] == (1.0, 0.7)
    assert judge(Filter(reward=RewardRange(max=0.9), score="correct"), group).kind == "reward"
    with pytest.raises(PoolError, match=r"has one called 'corect' \(filter\.score\)\. Did you mean 'correct'"):
        judge(Filter(zero_variance=True, score="corect"), group)


def test_groups_without_rewards_are_not_taken_for_constant():
    group = make_group(0)
    bare = replace(group, trajectories=tuple(replace(t, reward=None, rewards={}) for t in group.trajectories))
    with pytest.raises(PoolError, match=r"filter\.zero_variance looks at rewards, and no attempt of draw 0 has one"):
        judge(Filter(zero_variance=True), bare)
    assert judge(Filter(length=LengthRange(min=1)), bare) is None


def test_zero_variance_is_what_the_algorithm_implies_unless_it_is_said():
    plain = recipe()
    dynamic = plain.model_copy(update={"algorithm": SimpleNamespace(dynamic_sampling=True)})
    assert filter_of(plain).kinds == ()
    assert filter_of(dynamic).kinds == ("zero_variance",)
    said = recipe(filter={"zero_variance": False})
    assert filter_of(said.model_copy(update={"algorithm": dynamic.algorithm})).kinds == ()
    assert filter_of(recipe(filter={"zero_variance": True, "length": {"max": 3}})).kinds == ("zero_variance", "length")


def two(a: Group, b: Group) -> bool:
    return True


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("nowhere:f", "there is no module 'nowhere'"),
        ("plain", "is not module:function"),
        ("math:pi", "is a float, and must be a plain function"),
        ("python:mine", "was passed to stretto.train"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused_before_a_run(use, message):
    with pytest.raises(ConfigError, match=message):
        filter_of(recipe(filter={"use": use}))


def test_a_function_of_other_arguments_is_refused_before_a_run():
    for function, message in ((two, "cannot be called with one argument"), (late, "is a coroutine function")):
        with pytest.raises(ConfigError, match=message):
            filter_of(recipe(filter={"use": "python:given"}), function)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"filter": {"zero_variance": True}, "sampling": {"n": 1}, "algorithm": {"type": "ppo"}}, "every group"),
        ({"filter": {"reward": {"min": 0.8, "max": 0.2}}}, r"filter\.reward\.min=0\.8 is above .*max=0\.2"),
        ({"filter": {"length": {"min": 9, "max": 2}}}, r"filter\.length\.min=9\.0 is above"),
        ({"order": {"type": "success"}, "epochs": 1, "steps": None}, "epochs=1 counts passes"),
        ({"order": {"type": "difficulty"}}, r"order\.key is missing"),
    ],
)
def test_settings_that_cannot_work_are_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        recipe(**sections)


def test_counts_are_by_filter_and_by_the_names_that_a_function_gives():
    dropped = [
        Dropped(kind="use", why="too_easy"),
        Dropped(kind="use", why="too_easy"),
        Dropped(kind="use", why="mean 0.31, too low"),
        Dropped(kind="failed", why="timeout"),
    ]
    metrics = {name: metric.value for name, metric in drop_metrics(dropped, ("zero_variance", "use")).items()}
    assert metrics == {"filter/zero_variance": 0, "filter/use": 3, "filter/use/too_easy": 2}


def test_the_spread_of_rewards_in_words():
    assert told_rewards([(), ()]) == ""
    assert told_rewards([(0.0, 0.0)] * 3) == "all attempts 0 in 3 of 3 groups (100%); means of groups: all 0"
    told = told_rewards([(0.0, 0.0)] * 6 + [(1.0, 1.0)] * 3 + [(0.0, 1.0)])
    assert told == (
        "all attempts 0 in 6 of 10 groups (60%), all attempts 1 in 3 of 10 groups (30%), rewards that differ in 1 of "
        "10 groups (10%); means of groups: 0 to 0.2: 6, 0.2 to 0.4: 0, 0.4 to 0.6: 1, 0.6 to 0.8: 0, 0.8 to 1: 3"
    )
