"""Advantages against golden vectors, hand-computed cases and laws."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.algorithms.advantages import (
    gae,
    gae_credit,
    group_advantages,
    group_credit,
    judged_rewards,
    kl_estimate,
    place_rewards,
    whiten,
)
from stretto.errors import ConfigError, RewardError
from stretto.types import Column


def offsets_of(mask):
    return np.arange(len(mask) + 1) * len(mask[0])


def test_group_advantages_match_golden(golden, check):
    for case in golden("advantages", "grpo.std", "grpo.mean_only"):
        rewards, group = np.asarray(case["inputs"]["rewards"]), np.asarray(case["inputs"]["group"])
        scale = "group_std" if case["variant"] == "grpo.std" else "none"
        ours = np.zeros(len(rewards))
        for g in set(group.tolist()):
            ours[group == g] = group_advantages(
                rewards[group == g], scale=scale, epsilon=case["params"].get("eps", 1e-6)
            )
        check(case, "advantages", ours[:, None] * np.asarray(case["inputs"]["mask"]))


def test_group_advantages_by_hand():
    np.testing.assert_allclose(group_advantages([1, 0, 0, 0]), [1.499997, -0.499999, -0.499999, -0.499999], atol=1e-6)
    np.testing.assert_allclose(group_advantages([1, 0, 0, 0], scale="none"), [0.75, -0.25, -0.25, -0.25])


@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 20), scale=st.sampled_from(["group_std", "none"]))
def test_equal_rewards_give_exactly_zero(reward, size, scale):  # pitfall 27
    assert not group_advantages([reward] * size, scale=scale, epsilon=1e-9).any()


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12))
def test_group_advantages_are_centred(rewards):
    assert abs(group_advantages(rewards).sum()) < 1e-6


def test_gae_matches_golden(golden, check):
    for case in golden("advantages", "gae", "gae.whiten"):
        inputs, params = case["inputs"], case["params"]
        mask = np.asarray(inputs["mask"], np.uint8)
        rewards, values = np.asarray(inputs["token_rewards"]).ravel(), np.asarray(inputs["values"]).ravel()
        advantages, returns = gae(
            rewards, values, mask.ravel(), offsets_of(mask), gamma=params["gamma"], lam=params["lam"]
        )
        if case["variant"] == "gae.whiten":
            advantages = whiten(advantages, mask.ravel())
        check(case, "advantages", advantages.reshape(mask.shape))
        expected = np.asarray(case["expected"]["returns"]) * mask
        np.testing.assert_allclose(returns.reshape(mask.shape), expected, rtol=case["rtol"], atol=case["atol"])


def test_gae_skips_gaps_by_hand():
    mask = np.array([1, 1, 0, 0, 1, 1], np.uint8)
    values = np.array([0.5, 0.5, 9, 9, 0.5, 0.5])
    rewards = place_rewards(np.array([1.0]), mask, np.array([0, 6]))
    advantages, returns = gae(rewards, values, mask, np.array([0, 6]), gamma=1.0, lam=0.95)
    np.testing.assert_allclose(advantages, [0.4286875, 0.45125, 0, 0, 0.475, 0.5])
    np.testing.assert_allclose(returns, [0.9286875, 0.95125, 0, 0, 0.975, 1])


@settings(max_examples=200)
@given(data=st.data())
def test_gae_of_a_ragged_batch_is_gae_row_by_row(data):
    lengths = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    mask = np.asarray(data.draw(st.lists(st.integers(0, 1), min_size=total, max_size=total)), np.uint8)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rewards, values = rng.normal(size=total), rng.normal(size=total)
    advantages, returns = gae(rewards, values, mask, offsets, gamma=0.9, lam=0.8)
    for start, end in pairwise(offsets):
        following, advantage = 0.0, 0.0
        for t in reversed(range(start, end)):
            if not mask[t]:
                assert advantages[t] == returns[t] == 0
                continue
            advantage = rewards[t] + 0.9 * following - values[t] + 0.9 * 0.8 * advantage
            following = values[t]
            assert advantages[t] == pytest.approx(advantage)
            assert returns[t] == pytest.approx(advantage + values[t])


def test_whitening_of_one_token_or_none_is_zero():
    assert whiten(np.array([3.0, 5.0]), np.array([0, 1], np.uint8)).tolist() == [0, 0]
    assert whiten(np.array([3.0]), np.array([0], np.uint8)).tolist() == [0]


def test_kl_matches_golden(golden, check):
    for case in golden("kl", "kl.k1", "kl.k2", "kl.k3"):
        kind = case["variant"].removeprefix("kl.")
        check(case, "kl", kl_estimate(np.asarray(case["inputs"]["logp"]), np.asarray(case["inputs"]["ref_logp"]), kind))


def test_kl_by_hand():
    values = [float(kl_estimate(np.array([0.5]), np.array([0.0]), kind)[0]) for kind in ("k1", "k2", "k3")]
    assert values == pytest.approx([0.5, 0.125, 0.106531], abs=1e-6)


def test_kl_in_reward_matches_golden(golden, check):
    for case in golden("kl", "kl.in_reward"):
        inputs = case["inputs"]
        mask = np.asarray(inputs["mask"], np.uint8)
        placed = place_rewards(np.asarray(inputs["rewards"]), mask.ravel(), offsets_of(mask)).reshape(mask.shape)
        ours = placed - case["params"]["kl_coef"] * np.asarray(inputs["kl"]) * mask
        np.testing.assert_allclose(
            ours * mask, np.asarray(case["expected"]["token_rewards"]) * mask, rtol=case["rtol"], atol=case["atol"]
        )


def test_rewards_are_placed_on_the_last_written_token(batch_of):
    batch = batch_of([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
    placed = place_rewards(np.array([2.0, 3.0, 4.0]), batch.mask, batch.offsets)
    assert placed.tolist() == [0, 0, 0, 2, 0, *[0] * 5, 4, 0, 0, 0, 0]


def test_group_credit_broadcasts_and_counts(batch_of):  # pitfall 27
    batch = batch_of([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 1], [0, 0, 1]], [1, 0, 1, 1, 5], [0, 0, 1, 1, 2])
    credit = group_credit(batch, scale="none")
    assert credit.advantages.values.tolist() == [0, 0.5, 0.5, 0, -0.5, 0, *[0] * 9]
    assert credit.metrics["credit/constant_groups"].value == pytest.approx(1 / 3)
    assert credit.metrics["credit/single_groups"].value == pytest.approx(1 / 3)


def test_groups_are_matched_by_draw_not_by_prompt(batch_of):  # pitfall 28
    batch = batch_of([[0, 1]] * 4, [1, 0, 1, 1], [0, 0, 1, 1])
    assert batch.groups[0].prompt is batch.groups[1].prompt
    np.testing.assert_allclose(group_credit(batch, scale="none").advantages.values, [0, 0.5, 0, -0.5, 0, 0, 0, 0])


def test_gae_credit_adds_the_kl_penalty(batch_of):
    batch = batch_of([[0, 1, 1]], [1.0])
    values = Column.per_token("values", batch, np.zeros(3))
    ref = Column.per_token("ref_logprobs", batch, np.array([7.0, -1.0, -2.0]))
    credit = gae_credit(batch, values, ref, gamma=1.0, lam=1.0, whitened=False, kl_coef=0.1, kl_kind="k1")
    # sampler log-probs are 0, so k1 is 1 and 2; what stands before the written tokens does not matter
    np.testing.assert_allclose(credit.advantages.values, [0, 1 - 0.1 - 0.2, 1 - 0.2])
    assert credit.returns is not None
    np.testing.assert_allclose(credit.returns.values, credit.advantages.values)
    assert credit.metrics["credit/kl"].value == pytest.approx(1.5)


def test_kl_without_reference_is_refused(batch_of):
    batch = batch_of([[0, 1]], [1.0])
    with pytest.raises(ConfigError, match=r"kl_coef=0.1 .*no reference log-probs.*set kl_coef=0"):
        gae_credit(batch, Column.per_token("values", batch, np.zeros(2)), kl_coef=0.1)


@pytest.mark.parametrize("reward", [None, float("nan")])
def test_a_missing_reward_is_named(batch_of, reward):
    with pytest.raises(RewardError, match=r"Key\(draw=0.*Judge every group"):
        judged_rewards(batch_of([[0, 1]], [reward]))


def test_only_losses_load_torch():
    code = (
        "import sys\nfrom stretto.algorithms import advantages, aggregation, schedules\n"
        "print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
