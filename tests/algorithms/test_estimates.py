"""pass@k, majority and intervals: by hand, by counting all ways, and that intervals hold what they should."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.algorithms.estimates import clustered, interval, majority, pass_at, wilson


@given(st.data())
def test_pass_at_k_is_the_share_of_all_choices_with_a_right_one(data):
    n = data.draw(st.integers(1, 9))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    attempts = [i < c for i in range(n)]
    ways = [any(choice) for choice in combinations(attempts, k)]
    assert pass_at(k, n, c) == pytest.approx(sum(ways) / len(ways), abs=1e-12)


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
