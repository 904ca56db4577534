"""Which tokens Clip-Cov and KL-Cov treat apart: by hand, ties, the draw, and what must not matter."""

import numpy as np
import pytest

from stretto.algorithms.covariance import draw_in_range, select_top, selection_column, token_covariance
from stretto.config.algorithms.losses import ClipCovLoss, KlCovLoss
from stretto.types import Batch, Column


def test_covariance_by_hand():
    mask = np.array([1, 1, 0, 1, 1])
    advantages = np.array([1.0, 1.0, np.nan, -1.0, -1.0])
    logprobs = np.array([-1.0, -3.0, np.nan, -1.0, -3.0])
    np.testing.assert_array_equal(token_covariance(logprobs, advantages, mask), [1, -1, 0, -1, 1])
    assert not token_covariance(logprobs, advantages, 0 * mask).any()


def test_the_largest_are_taken_and_of_equal_ones_the_first():
    covariance, mask = np.array([1.0, 5.0, 9.0, 5.0, 5.0]), np.array([1, 1, 0, 1, 1])
    assert select_top(covariance, mask, top_fraction=0.5).tolist() == [False, True, False, True, False]
    assert select_top(covariance, mask, top_fraction=1e-6).sum() == 1
    assert not select_top(covariance, 0 * mask, top_fraction=0.5).any()


def test_the_draw_is_among_those_in_range_and_by_its_seed():
    covariance, mask = np.linspace(0, 2, 1000), np.ones(1000)
    limits = {"cov_min": 0.5, "cov_max": 1.5, "max_fraction": 0.1}
    draws = [draw_in_range(covariance, mask, **limits, seed=seed) for seed in (0, 0, 1)]
    for drawn in draws:
        assert drawn.sum() == 100
        assert (covariance[drawn] > 0.5).all()
        assert (covariance[drawn] < 1.5).all()
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()
    assert not draw_in_range(covariance, mask, cov_min=3.0, cov_max=4.0, max_fraction=0.1).any()
    assert not draw_in_range(covariance, 0 * mask, **limits).any()


@pytest.mark.parametrize("loss", [KlCovLoss(top_fraction=0.5), ClipCovLoss(cov_min=-9, cov_max=9, max_fraction=1)])
def test_what_is_not_trained_on_is_never_chosen(batch_of, loss):
    batch = batch_of([[0, 1, 1, 1], [1, 1, 0, 1]])

    def column(name, values):
        return Column.per_token(name, batch, np.where(batch.mask != 0, values, np.nan))

    logprobs = column("logprobs", np.linspace(-4, 0, 8))
    advantages = column("advantages", np.linspace(1, -2, 8))
    keep = Column.per_token("keep", batch, np.array([0, 1, 1, 1, 1, 0, 0, 1]))
    chosen = selection_column(batch, logprobs, advantages, loss, keep=keep, seed=3)
    assert chosen.name == "selected"
    assert chosen.values.any()
    assert not chosen.values[(batch.mask == 0) | (keep.values == 0)].any()


def test_clip_cov_leaves_alone_what_a_bound_already_cuts(batch_of):
    batch = batch_of([[1, 1, 1, 1]])
    advantages = Column.per_token("advantages", batch, np.array([1.0, 1.0, -1.0, -1.0]))
    logprobs = Column.per_token("logprobs", batch, np.array([-1.0, -1.0, -3.0, -3.0]))
    old = Column.per_token("old_logprobs", batch, np.array([-1.5, -1.0, -3.0, -2.0]))
    loss = ClipCovLoss(cov_min=0.5, cov_max=5, max_fraction=1.0)
    chosen = selection_column(batch, logprobs, advantages, loss, old=old)
    assert chosen.values.tolist() == [0, 1, 1, 0]
    # The authors' bounds: none below, and 2 above.
    loss = ClipCovLoss(cov_min=0.5, cov_max=5, max_fraction=1.0, clip_low=1.0, clip_high=1.0)
    assert selection_column(batch, logprobs, advantages, loss, old=old).values.tolist() == [1, 1, 1, 1]


def test_an_empty_batch_has_an_empty_choice():
    empty = Batch(groups=())
    column = Column.per_token("x", empty, np.zeros(0))
    for loss in (KlCovLoss(), ClipCovLoss()):
        assert len(selection_column(empty, column, column, loss).values) == 0
