"""KL estimates and the penalty in the reward; the coefficient that adapts."""

import numpy as np
import pytest

from stretto.algorithms.advantages import kl_estimate, rewards_with_kl
from stretto.algorithms.controllers import adapted_coef
from stretto.errors import ConfigError


@pytest.mark.parametrize(("kind", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", 0.106531), ("abs", 0.5)])
def test_kl_by_hand(kind, value):
    assert kl_estimate([0.5], [0.0], kind) == pytest.approx(value, abs=1e-6)
    assert kl_estimate([0.0], [0.5], "k1") == -0.5 and kl_estimate([0.0], [0.5], "abs") == 0.5


def test_the_penalty_is_on_every_written_token_and_the_clip_on_the_reward_alone():
    mask, offsets = np.array([1, 0, 1, 1], np.uint8), np.array([0, 3, 4])
    kl = np.array([1.0, np.nan, 2.0, 30.0])
    assert rewards_with_kl([1.0, -9.0], kl, mask, offsets, kl_coef=0.5).tolist() == [-0.5, 0, 0, -24]
    assert rewards_with_kl([1.0, -9.0], kl, mask, offsets, kl_coef=0.5, clip=(-2.0, 2.0)).tolist() == [-0.5, 0, 0, -17]


def test_the_coefficient_follows_the_target():
    rise = adapted_coef(0.1, 6.6, target=6.0, horizon=1000, steps=100)
    assert rise == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    assert adapted_coef(0.1, 600, target=6.0, horizon=1000, steps=100) == pytest.approx(0.102)
    assert adapted_coef(0.1, -1, target=6.0, horizon=1000, steps=100) == pytest.approx(0.098)
    assert adapted_coef(0.1, 6, target=6.0, horizon=1000, steps=100) == 0.1


def test_a_skipped_update_leaves_the_coefficient():  # pitfall 23
    assert adapted_coef(0.1, float("nan"), target=6.0, horizon=1000, steps=100) == 0.1


def test_a_horizon_that_could_end_the_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"horizon is 20 and an update has 100 samples.*several updates"):
        adapted_coef(0.1, 6.0, target=6.0, horizon=20, steps=100)
