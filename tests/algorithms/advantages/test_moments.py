"""Whitening, moments and explained variance over written tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.algorithms.advantages import explained_variance, masked_moments, whiten


def test_whitening_by_hand():
    values, mask = np.array([1.0, np.nan, 3.0, 5.0]), [1, 0, 1, 1]
    assert masked_moments(values, mask) == (3, 4) and masked_moments(values, mask, ddof=0) == pytest.approx((3, 8 / 3))
    np.testing.assert_allclose(whiten(values, mask, epsilon=5.0), np.array([-2, 0, 0, 2]) / 3)
    np.testing.assert_allclose(whiten(values, mask, epsilon=5.0, stabilizer="add_to_std"), np.array([-2, 0, 0, 2]) / 7)
    floor = whiten(values, mask, epsilon=16.0, stabilizer="variance_floor")
    np.testing.assert_allclose(floor, [-0.5, 0, 0, 0.5])
    np.testing.assert_allclose(whiten(values, mask, ddof=0, epsilon=1 / 3), np.array([-2, 0, 0, 2]) / np.sqrt(3))


@given(value=st.floats(-1e6, 1e6), count=st.integers(0, 16), ddof=st.sampled_from([0, 1]))
def test_equal_values_and_one_alone_are_exactly_zero(value, count, ddof):
    mask = [1] * count + [0]
    assert not whiten([value] * count + [7.0], mask, ddof=ddof).any()
    assert masked_moments([value] * count + [7.0], mask, ddof=ddof) == (value if count else 0, 0)


def test_explained_variance_by_hand():
    returns, mask = np.array([0.0, 2.0, 4.0, np.nan]), [1, 1, 1, 0]
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(returns + 5, returns, mask) == 1
    assert explained_variance(np.zeros(4), returns, mask) == 0
    assert explained_variance(-returns, returns, mask) == -3
    assert explained_variance([1, 2, 3, 0], [2, 2, 2, 0], mask) == 0
