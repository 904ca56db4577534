"""pass@k, majority, extremes and intervals: by hand, by counting all ways, and that intervals hold what they should."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.algorithms.estimates import (
    clustered,
    consensus_at,
    extremes,
    interval,
    majority,
    pass_all,
    pass_at,
    wilson,
)


@given(st.data())
def test_pass_at_k_is_the_share_of_all_choices_with_a_right_one(data):
    n = data.draw(st.integers(1, 9))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    attempts = [i < c for i in range(n)]
    ways = [any(choice) for choice in combinations(attempts, k)]
    assert pass_at(k, n, c) == pytest.approx(sum(ways) / len(ways), abs=1e-12)


@given(st.data())
def test_pass_all_is_the_share_of_all_choices_that_are_right_throughout(data):
    n = data.draw(st.integers(1, 9))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    ways = [all(choice) for choice in combinations([i < c for i in range(n)], k)]
    assert pass_all(k, n, c) == pytest.approx(sum(ways) / len(ways), abs=1e-12)


@given(st.data())
def test_consensus_is_the_mean_of_the_majority_over_all_choices(data):
    votes = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8))
    values = data.draw(st.lists(st.integers(-3, 3), min_size=len(votes), max_size=len(votes)))
    k = data.draw(st.integers(1, len(votes)))
    found = []
    for choice in combinations(range(len(votes)), k):
        winner = majority([votes[i] for i in choice])
        found.append(0 if winner is None else values[choice[winner]])
    assert consensus_at(k, votes, values) == pytest.approx(np.mean(found), abs=1e-12)


def test_consensus_of_many_attempts_needs_no_choices():
    """C(64, 32) is 1.8e18. All of one answer but one: it wins unless it isn't there."""
    assert consensus_at(32, ["a"] * 64, [1.0] * 64) == pytest.approx(1)
    assert consensus_at(1, ["a"] * 48 + ["b"] * 16, [1.0] * 48 + [0.0] * 16) == pytest.approx(0.75)
    half = consensus_at(31, ["a", "b"] * 32, [1.0, 0.0] * 32)
    assert half == pytest.approx(0.5)


@pytest.mark.parametrize("with_replacement", [True, False])
@given(scores=st.lists(st.integers(-5, 5), min_size=1, max_size=5), n=st.integers(1, 4))
def test_extremes_are_those_of_all_choices(scores, n, with_replacement):
    n = n if with_replacement else min(n, len(scores))
    choices = list(product(scores, repeat=n) if with_replacement else combinations(scores, n))
    found = extremes(n, scores, with_replacement=with_replacement)
    best, worst = [max(c) for c in choices], [min(c) for c in choices]
    assert (found.best_mean, found.best_std) == pytest.approx((np.mean(best), np.std(best)), abs=1e-9)
    assert (found.worst_mean, found.worst_std) == pytest.approx((np.mean(worst), np.std(worst)), abs=1e-9)


def test_pass_at_by_hand():
    assert pass_at(1, 4, 1) == 0.25
    assert pass_at(2, 4, 1) == 0.5  # 1 - C(3,2)/C(4,2) = 1 - 3/6
    assert pass_at(4, 4, 0) == 0 and pass_at(3, 4, 2) == 1
    assert pass_at(100, 1000, 1) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        (["7", "8", "8"], 1),
        (["7", "8", "8", "7"], 0),  # a tie goes to what came first
        ([None, "8", None], 1),  # who gives no answer has no vote
        ([None, None], None),
        (["7"], 0),
    ],
)
def test_majority(votes, winner):
    assert majority(votes) == winner


def test_intervals_by_hand():
    # Wilson, 8 of 10: centre (0.8 + 1.9207/10) / (1 + 3.8415/10) = 0.71674, half 0.22663.
    assert wilson(0.8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    assert wilson(0, 5)[0] == 0 and wilson(1, 5)[1] == 1 and wilson(0, 5)[1] == pytest.approx(0.43449, abs=1e-5)
    # Means 0, 0.5, 1: mean 0.5, s 0.5, half 1.96 * 0.5 / sqrt(3) = 0.5658, cut at 0 and 1.
    assert clustered([0, 0.5, 1]) == (0, 1)
    low, high = clustered([0.4, 0.5, 0.6])
    assert (low, high) == pytest.approx((0.5 - 1.95996 * 0.1 / math.sqrt(3), 0.5 + 1.95996 * 0.1 / math.sqrt(3)))
    assert clustered([0.3]) == wilson(0.3, 1) and clustered([0, 0]) == wilson(0, 2)
    assert interval([1, 0], 1) == wilson(0.5, 2) and interval([1, 2], 4) == clustered([0.25, 0.5])


def test_clustering_counts_problems_not_attempts():
    """Attempts that always agree with their siblings say no more than one of them; the naive interval would shrink."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        right = (rng.random(60) < 0.3) * 16
        low, high = interval(right.tolist(), 16)
        hits += low <= 0.3 <= high
    assert 0.91 < hits / 400 < 0.98


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_share(n, data):
    right = data.draw(st.integers(0, n))
    low, high = wilson(right / n, n)
    assert 0 <= low <= right / n <= high <= 1 and low < high
