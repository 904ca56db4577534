"""Token-level estimators: by hand, against loops over rows and tokens, and their laws."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.algorithms.advantages import (
    broadcast_rows,
    discounted_returns,
    gae,
    length_adaptive_lambdas,
    place_rewards,
    remax_advantages,
)


@st.composite
def ragged(draw, max_rows=6):
    """Rewards and values, mask and offsets of rows with gaps, late starts and none written; NaN where the mask is 0."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=max_rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    mask = np.asarray(draw(st.lists(st.integers(0, 1), min_size=total, max_size=total)), np.uint8)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rewards, values = (np.where(mask, rng.normal(size=total), np.nan) for _ in range(2))
    return rewards, values, mask, offsets


def by_loop(rewards, values, mask, offsets, gamma, lam):
    """GAE row by row and token by token, masked tokens skipped; with ``values`` 0 and lam 1 the reward to go."""
    advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
    for start, end in pairwise(offsets):
        following, advantage = 0.0, 0.0
        for t in reversed(range(start, end)):
            if mask[t]:
                advantage = rewards[t] + gamma * following - values[t] + gamma * lam * advantage
                following = values[t]
                advantages[t], returns[t] = advantage, advantage + values[t]
    return advantages, returns


def test_gae_skips_gaps_by_hand():
    mask = np.array([1, 1, 0, 0, 1, 1], np.uint8)
    values = np.array([0.5, 0.5, 9, 9, 0.5, 0.5])
    rewards = place_rewards(np.array([1.0]), mask, np.array([0, 6]))
    advantages, returns = gae(rewards, values, mask, np.array([0, 6]), gamma=1.0, lam=0.95)
    np.testing.assert_allclose(advantages, [0.4286875, 0.45125, 0, 0, 0.475, 0.5])
    np.testing.assert_allclose(returns, [0.9286875, 0.95125, 0, 0, 0.975, 1])


def test_returns_by_hand():
    mask, offsets = np.array([1, 0, 1, 1, 1], np.uint8), np.array([0, 3, 5])
    rewards = np.array([1.0, np.nan, 4.0, 2.0, 6.0])
    assert discounted_returns(rewards, mask, offsets, gamma=0.5).tolist() == [3, 0, 4, 5, 6]
    assert discounted_returns(rewards, mask, offsets, gamma=0.5, gaps="count").tolist() == [2, 0, 4, 5, 6]
    assert discounted_returns(rewards, mask, offsets, gamma=0.5, gaps="wrongly_reset").tolist() == [1, 0, 4, 5, 6]
    advantages, returns = remax_advantages(rewards, [1.0, 2.0], mask, offsets)
    assert returns.tolist() == [5, 0, 4, 8, 6] and advantages.tolist() == [4, 0, 3, 6, 4]


@settings(max_examples=150)
@given(batch=ragged(), gamma=st.sampled_from([1.0, 0.9]), lam=st.sampled_from([0.0, 0.8, 1.0]))
def test_a_ragged_batch_is_its_rows_one_by_one(batch, gamma, lam):
    rewards, values, mask, offsets = batch
    expected = by_loop(rewards, values, mask, offsets, gamma, lam)
    np.testing.assert_allclose(gae(rewards, values, mask, offsets, gamma=gamma, lam=lam), expected, atol=1e-12)
    to_go = by_loop(rewards, np.zeros(len(mask)), mask, offsets, gamma, 1.0)[0]
    np.testing.assert_allclose(discounted_returns(rewards, mask, offsets, gamma=gamma), to_go, atol=1e-12)


@settings(max_examples=60)
@given(batch=ragged(), width=st.integers(0, 5), seed=st.integers(0, 99))
def test_padding_and_order_of_rows_do_not_matter(batch, width, seed):
    rewards, values, mask, offsets = batch
    rows = list(pairwise(offsets))
    order = np.random.default_rng(seed).permutation(len(rows))

    def moved(x, fill):
        return np.concatenate([np.append(x[slice(*rows[r])], [fill] * width) for r in order])

    lengths = [rows[r][1] - rows[r][0] + width for r in order]
    moved_offsets = np.concatenate([[0], np.cumsum(lengths)])
    lambdas = np.linspace(0, 1, len(rows))
    expected = gae(rewards, values, mask, offsets, gamma=0.9, lam=lambdas, lam_value=1.0)
    ours = gae(
        moved(rewards, np.nan),
        moved(values, np.nan),
        moved(mask, 0),
        moved_offsets,
        gamma=0.9,
        lam=lambdas[order],
        lam_value=1.0,
    )
    for a, b in zip(ours, expected, strict=True):
        assert a.tolist() == moved(b, 0.0).tolist()


@given(batch=ragged())
def test_with_lambda_one_the_return_is_the_reward_to_go(batch):
    rewards, values, mask, offsets = batch
    returns = gae(rewards, values, mask, offsets, gamma=0.9, lam=0.5, lam_value=1.0)[1]
    np.testing.assert_allclose(returns, discounted_returns(rewards, mask, offsets, gamma=0.9), atol=1e-12)


def test_two_lambdas_are_two_runs():
    rng = np.random.default_rng(0)
    rewards, values, mask, offsets = rng.normal(size=6), rng.normal(size=6), np.ones(6, np.uint8), np.array([0, 2, 6])
    both = gae(rewards, values, mask, offsets, gamma=1.0, lam=0.9, lam_value=0.3)
    assert both[0].tolist() == gae(rewards, values, mask, offsets, gamma=1.0, lam=0.9)[0].tolist()
    assert both[1].tolist() == gae(rewards, values, mask, offsets, gamma=1.0, lam=0.3)[1].tolist()


def test_a_lambda_grows_with_the_written_tokens_of_a_row():
    mask = np.array([0, 1, 1, 1, 1, 0, 1, 0, 0], np.uint8)
    lambdas = length_adaptive_lambdas(mask, np.array([0, 5, 5, 7, 9]), alpha=0.5)
    assert lambdas.tolist() == [0.5, 0, 0, 0]


def test_a_long_row_costs_no_padding():
    """As a matrix these rows would be 5,000 x 50,000 numbers."""
    offsets = np.concatenate([[0], np.cumsum([50_000, *[1] * 4_999])])
    mask = np.ones(offsets[-1], np.uint8)
    returns = discounted_returns(np.ones(len(mask)), mask, offsets)
    assert returns[0] == 50_000 and returns[49_999] == 1 and (returns[50_000:] == 1).all()


def test_rewards_are_placed_on_the_last_written_token(batch_of):
    batch = batch_of([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
    placed = place_rewards(np.array([2.0, 3.0, 4.0]), batch.mask, batch.offsets)
    assert placed.tolist() == [0, 0, 0, 2, 0, *[0] * 5, 4, 0, 0, 0, 0]
    assert broadcast_rows([2, 3, 4], batch.mask, batch.offsets).tolist() == [0, 2, 0, 2, 0, *[0] * 5, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("offsets", [[0], [0, 0]])
def test_no_tokens(offsets):
    none, mask, offsets = np.zeros(0), np.zeros(0, np.uint8), np.array(offsets)
    assert discounted_returns(none, mask, offsets).shape == (0,)
    assert gae(none, none, mask, offsets, gamma=1.0, lam=0.9)[0].shape == (0,)
