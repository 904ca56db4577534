"""Group-relative estimators: by hand, against the formula written out group by group, and their laws."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stretto.algorithms.advantages import (
    cpgd_advantages,
    gdpo_advantages,
    gpg_advantages,
    group_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    rloo_advantages,
)


def opo(rewards, groups, **settings):
    """With a length that follows from the row's reward, so that it moves with the row."""
    return opo_advantages(rewards, groups, np.round(np.abs(rewards) * 3) + 1, **settings)


def gdpo(rewards, groups, *, leave_one_out=False):
    return gdpo_advantages([rewards, np.square(rewards)], groups, [1.0, 0.25], leave_one_out=leave_one_out)


LOCAL = {
    "std": group_advantages,
    "std_biased": partial(group_advantages, ddof=0, epsilon=1e-4),
    "std_floor": partial(group_advantages, scale="group_std_floor"),
    "std_loo": partial(group_advantages, center="leave_one_out", scale="leave_one_out_std"),
    "loo_dev": partial(group_advantages, center="leave_one_out", scale="leave_one_out_deviation"),
    "mean_only": partial(group_advantages, scale="none"),
    "rloo": rloo_advantages,
    "opo": opo,
    "maxrl": maxrl_advantages,
    "maxrl_eps": partial(maxrl_advantages, epsilon=1e-6),
    "pass_at_k": pass_at_k_advantages,
    "pass_at_k_plain": partial(pass_at_k_advantages, scale="none"),
    "cpgd_std": partial(cpgd_advantages, weight="group_std"),
    "cpgd_plain": partial(cpgd_advantages, weight="none"),
}
"""Those in which a group sees nothing of another."""
CENTRED = {
    **LOCAL,
    "batch_std": partial(group_advantages, scale="batch_std"),
    "gpg": gpg_advantages,
    "gpg_nonzero": partial(gpg_advantages, rows="nonzero"),
    "cpgd": cpgd_advantages,
    "cpgd_rows": partial(cpgd_advantages, count="rows"),
    "gdpo": gdpo,
}
"""Those in which a group without a difference has advantage 0."""
ALL = {
    **CENTRED,
    "batch_mean_std": partial(group_advantages, center="batch_mean", scale="batch_std"),
    "gdpo_loo": partial(gdpo, leave_one_out=True),
}

some_rewards = st.one_of(
    st.sampled_from([0.0, 1.0]), st.sampled_from([0.1, 0.7, 0.95, 1 / 3]), st.floats(0, 100, width=32)
)


@st.composite
def batches(draw):
    """Rewards and groups of any sizes, ids unsorted."""
    groups = draw(st.lists(st.sampled_from([-7, 0, 3, 10**12]), min_size=1, max_size=14))
    return np.asarray(draw(st.lists(some_rewards, min_size=len(groups), max_size=len(groups)))), np.asarray(groups)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)


def test_by_hand():
    one_of_four, groups = [1, 0, 0, 0], [5, 5, 5, 5]
    close(group_advantages(one_of_four, groups), np.array([0.75, -0.25, -0.25, -0.25]) / 0.500001)
    close(group_advantages(one_of_four, groups, scale="none"), [0.75, -0.25, -0.25, -0.25])
    close(rloo_advantages(one_of_four, groups), [1, -1 / 3, -1 / 3, -1 / 3])
    close(maxrl_advantages(one_of_four, groups), [3, -1, -1, -1])
    close(opo_advantages(one_of_four, groups, [3, 1, 1, 1]), [0.5, -0.5, -0.5, -0.5])
    close(pass_at_k_advantages(one_of_four, groups, scale="none"), [1, 0, 0, 0])
    # Another group, without a difference: half the rows, half the groups have a gradient; 1 + 4 rows are not 0.
    rewards, groups = [*one_of_four, 1, 1, 1, 1], [5] * 4 + [2] * 4
    close(gpg_advantages(rewards, groups), [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0])
    close(gpg_advantages(rewards, groups, rows="nonzero", f_norm=2.0), np.array([0.75, *[-0.25] * 3, *[0] * 4]) * 0.8)
    close(cpgd_advantages(rewards, groups), [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0])
    close(cpgd_advantages(rewards, groups, cap=1.5), np.array([0.75, *[-0.25] * 3, *[0] * 4]) * 1.5)


def test_maxrl_has_the_gradient_of_the_truncated_log_likelihood():
    """Over all outcomes of n attempts that succeed with rate p, whose score is (r - p) dp / (p (1 - p))."""
    for n, p in ((2, 0.3), (5, 0.1), (5, 0.7)):
        total = 0.0
        for outcome in itertools.product((0.0, 1.0), repeat=n):
            r = np.asarray(outcome)
            chance = float(np.prod(np.where(r == 1, p, 1 - p)))
            total += chance * float((maxrl_advantages(r, np.zeros(n, np.int64)) * (r - p) / (p * (1 - p))).mean())
        assert np.isclose(total, sum((1 - p) ** k for k in range(n - 1)))


def written_out(rewards, scale, center, ddof, epsilon):
    """One group of two or more, by the formulas of the docstring."""
    n = len(rewards)
    out = []
    for i, r in enumerate(rewards):
        others = np.delete(rewards, i)
        centred = r - (rewards.mean() if center == "mean" else others.mean())
        if scale == "none":
            out.append(centred)
            continue
        if scale == "leave_one_out_std":
            std = others.std(ddof=ddof) if len(others) > ddof else 0.0
            out.append(centred if others.max() == others.min() else centred / (std + epsilon))
            continue
        std = rewards.std(ddof=ddof)
        if scale == "leave_one_out_deviation":
            std = np.sqrt(sum((x - np.delete(rewards, j).mean()) ** 2 for j, x in enumerate(rewards)) / (n - ddof))
        if scale == "group_std_floor":
            std = np.sqrt(max(std**2, epsilon))
        out.append(centred / (std + epsilon))
    return out


@given(
    rewards=st.lists(st.integers(-20, 20).map(lambda x: x / 8), min_size=2, max_size=9),
    scale=st.sampled_from(["none", "group_std", "group_std_floor", "leave_one_out_std", "leave_one_out_deviation"]),
    center=st.sampled_from(["mean", "leave_one_out"]),
    ddof=st.sampled_from([0, 1]),
)
def test_one_group_is_the_formula_written_out(rewards, scale, center, ddof):
    ours = group_advantages(rewards, [0] * len(rewards), scale=scale, center=center, ddof=ddof, epsilon=1e-3)
    close(ours, written_out(np.asarray(rewards), scale, center, ddof, 1e-3))


@pytest.mark.parametrize("name", CENTRED)
@given(reward=st.floats(0, 1e6), sizes=st.lists(st.integers(1, 17), min_size=1, max_size=3), other=st.booleans())
def test_equal_rewards_give_exactly_zero(name, reward, sizes, other):  # pitfall 27
    groups = np.repeat(np.arange(len(sizes)), sizes)
    rewards = np.full(len(groups), reward)
    if other:  # a group that does differ must not lend them anything
        rewards, groups = np.append(rewards, [0.0, 1.0, 0.3]), np.append(groups, [99] * 3)
    assert not CENTRED[name](rewards, groups)[: sum(sizes)].any()


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60)
@given(batch=batches(), seed=st.integers(0, 99))
def test_order_of_rows_and_names_of_groups_do_not_matter(name, batch, seed):
    rewards, groups = batch
    expected = ALL[name](rewards, groups)
    order = np.random.default_rng(seed).permutation(len(rewards))
    renamed = np.unique(groups[order], return_inverse=True)[1]
    other = ALL[name](rewards[order], (renamed * 17 + seed) % 29 - 5)
    if name in LOCAL:  # sums are taken in the order of rewards, so they are the same bits
        assert other.tolist() == expected[order].tolist()
    else:
        close(other, expected[order])


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60)
@given(batch=batches())
@example(batch=(np.array([0.0] * 6 + [1.0] * 7 + [0.1]), np.zeros(14, int)))  # sums from both sides round differently
def test_siblings_of_equal_reward_have_the_same_advantage(name, batch):
    rewards, groups = batch
    advantages: dict[tuple[float, int], float] = {}
    for reward, group, advantage in zip(rewards, groups, ALL[name](rewards, groups), strict=True):
        assert advantages.setdefault((reward, group), advantage) == advantage


@pytest.mark.parametrize("name", LOCAL)
@settings(max_examples=60)
@given(batch=batches())
def test_groups_alone_are_groups_together(name, batch):
    rewards, groups = batch
    together = LOCAL[name](rewards, groups)
    for group in set(groups.tolist()):
        alone = LOCAL[name](rewards[groups == group], groups[groups == group])
        assert together[groups == group].tolist() == alone.tolist()


@given(batch=batches())
def test_advantages_of_a_group_are_centred(batch):
    rewards, groups = batch
    for name in ("std", "mean_only", "rloo", "loo_dev"):
        assert abs(LOCAL[name](rewards, groups).sum()) < 1e-5


@pytest.mark.parametrize("name", ALL)
def test_no_rows(name):
    assert ALL[name](np.zeros(0), np.zeros(0, int)).shape == (0,)


def test_a_group_of_one_is_what_was_asked_for():
    rewards, groups = [3.0, 1.0, 0.0], [0, 1, 1]
    assert group_advantages(rewards, groups)[0] == 0
    assert group_advantages(rewards, groups, singleton="raw")[0] == 3
    assert group_advantages(rewards, groups, singleton="raw_over_1_plus_eps", epsilon=0.5)[0] == 2
    assert rloo_advantages(rewards, groups, singleton="raw")[0] == 3
    assert opo_advantages(rewards, groups, [1, 1, 1], singleton="raw")[0] == 3
    assert maxrl_advantages(rewards, groups, singleton="raw")[0] == 3
    assert gpg_advantages(rewards, groups, singleton="raw", rows="nonzero")[0] == 4.5
    assert pass_at_k_advantages(rewards, groups)[0] == 0


def test_an_outlier_leaves_nothing_in_the_deviation_of_the_others():
    """Taken from a total, 1e-2 would be lost under 1e20."""
    rewards = np.array([0.1, 0.2, 0.3, 1e10])
    spiked = group_advantages(rewards, [0] * 4, center="leave_one_out", scale="leave_one_out_std", epsilon=0.0)
    np.testing.assert_allclose(spiked[3], (1e10 - 0.2) / 0.1, rtol=1e-12)


@given(value=st.floats(-1e6, 1e6), outlier=st.floats(-1e6, 1e6), size=st.integers(2, 17), ddof=st.sampled_from([0, 1]))
def test_equal_others_are_no_division(value, outlier, size, ddof):
    """Their deviation is 0, not float noise over epsilon."""
    rewards = np.array([outlier] + [value] * size)
    spiked = group_advantages(
        rewards, [0] * len(rewards), center="leave_one_out", scale="leave_one_out_std", epsilon=1e-9, ddof=ddof
    )
    np.testing.assert_allclose(spiked[0], outlier - value, rtol=1e-9, atol=1e-9)


def test_a_group_that_wrote_nothing_has_no_length_to_weigh_by():
    assert opo_advantages([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], [0, 0, 2, 2]).tolist() == [0, 0, 0.5, -0.5]


def test_gdpo_keeps_apart_what_a_sum_would_merge():
    """Rewards (1, 0) and (0, 1) have the same sum; where the second is rarer in the group, it is worth more."""
    first, second = [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]
    ours = gdpo_advantages([first, second], [0] * 4, [1.0, 1.0])
    assert ours[2] > ours[0] == ours[1] > ours[3]
    assert ours.std(ddof=1) == pytest.approx(1)
    merged = group_advantages(np.add(first, second), [0] * 4)
    assert merged[0] == merged[2]


def test_maxrl_of_a_group_without_success_is_zero():
    assert not maxrl_advantages([0, 0, -1, -1.5], [0, 0, 1, 1]).any()
