"""The Credit of a Batch: siblings and attempts, every estimator by its config, and what is refused."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from stretto.algorithms.advantages import (
    KlInReward,
    gae_credit,
    group_credit,
    judged_rewards,
    length_adaptive_lambdas,
)
from stretto.config.algorithms.estimators import (
    Advantages,
    GaeConfig,
    GdpoAdvantages,
    GroupAdvantages,
    MaxRlAdvantages,
    ReinforcePpAdvantages,
    ReinforcePpBaselineAdvantages,
    RemaxAdvantages,
    RlooAdvantages,
)
from stretto.errors import ConfigError, DataError, RewardError
from stretto.types import Batch, Column, Key

CENTRED = GroupAdvantages(scale="none")
CONFIGS = TypeAdapter(Advantages)
TYPES = [
    "group",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "opo",
    "gpg",
    "maxrl",
    "pass_at_k",
    "gdpo",
    "cpgd",
]


def changed(batch, change):
    """``batch`` with ``change(row, trajectory)`` in place of each trajectory."""
    row = {t.key: i for i, t in enumerate(batch.trajectories)}
    return Batch(
        groups=tuple(
            replace(g, trajectories=tuple(change(row[t.key], t) for t in g.trajectories)) for g in batch.groups
        )
    )


def test_a_group_shares_its_mean_and_is_counted(batch_of):  # pitfall 27
    batch = batch_of([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 1], [0, 0, 1]], [1, 0, 1, 1, 5], [0, 0, 1, 1, 2])
    credit = group_credit(batch, CENTRED)
    assert credit.advantages.values.tolist() == [0, 0.5, 0.5, 0, -0.5, 0, *[0] * 9]
    assert credit.metrics["credit/constant_groups"].value == pytest.approx(1 / 3)
    assert credit.metrics["credit/single_groups"].value == pytest.approx(1 / 3)
    assert credit.metrics["credit/reward_std"].value == pytest.approx(np.sqrt(0.5) / 2)


def test_groups_are_matched_by_draw_not_by_prompt(batch_of):  # pitfall 28
    batch = batch_of([[0, 1]] * 4, [1, 0, 1, 1], [0, 0, 1, 1])
    assert batch.groups[0].prompt is batch.groups[1].prompt
    np.testing.assert_allclose(group_credit(batch, CENTRED).advantages.values, [0, 0.5, 0, -0.5, 0, 0, 0, 0])


@pytest.mark.parametrize("type", TYPES)
def test_every_estimator_credits_a_batch(batch_of, type):
    estimator = CONFIGS.validate_python({"type": type})
    batch = batch_of(
        [[0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 1, 1, 1]] * 2, [1, 0, 0.5, 0.5] * 2, [0] * 4 + [1] * 4
    )
    named = changed(batch, lambda row, t: replace(t, rewards={"right": t.reward}, info={"greedy": row % 4 == 1}))
    credit = group_credit(named, estimator)
    assert credit.returns is None and np.isfinite(credit.advantages.values).all()
    assert credit.advantages.values.any() and not credit.advantages.values[batch.mask == 0].any()


@pytest.mark.parametrize("type", sorted(set(TYPES) - {"remax"}))
def test_parts_of_an_attempt_are_one(batch_of, type):
    """Two rows that are parts of one attempt are credited as the one row that has the tokens of both."""
    estimator = CONFIGS.validate_python({"type": type})
    one = batch_of([[0, 1, 1, 0, 1, 1], [0, 1, 1], [0, 0, 1]], [1, 0, 0.5], [0] * 3)
    cut = batch_of([[0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 1]], [1, 1, 0, 0.5], [0] * 4)
    keys = [Key(0, 0, 0), Key(0, 0, 1), Key(0, 1), Key(0, 2)]
    one, cut = (changed(b, lambda row, t: replace(t, rewards={"right": t.reward})) for b in (one, cut))
    cut = changed(cut, lambda row, t: replace(t, key=keys[row]))
    expected, ours = group_credit(one, estimator), group_credit(cut, estimator)
    np.testing.assert_allclose(ours.advantages.values, expected.advantages.values, rtol=1e-12)
    assert ours.metrics == expected.metrics


def test_two_models_of_a_draw_are_two_groups(batch_of):
    batch = batch_of([[1]] * 4, [1, 0, 5, 3], [0] * 4)
    batch = changed(batch, lambda row, t: replace(t, key=Key(0, row, model="ab"[row // 2])))
    assert group_credit(batch, CENTRED).advantages.values.tolist() == [0.5, -0.5, 1, -1]


def test_whitening_is_over_tokens(batch_of):
    """Rewards 1 and 0 are +-0.5; three tokens of the first row and one of the second have mean 0.25."""
    batch = batch_of([[1, 1, 1], [1, 0, 0]], [1, 0], [0, 0])
    credit = group_credit(batch, ReinforcePpBaselineAdvantages(ddof=0))
    expected = np.array([0.25] * 3 + [-0.75, 0, 0]) / np.sqrt(3 / 16 + 1e-8)
    np.testing.assert_allclose(credit.advantages.values, expected)
    same = group_credit(batch, ReinforcePpAdvantages(ddof=0))
    np.testing.assert_allclose(same.advantages.values, expected)


def test_remax_takes_the_greedy_attempt_as_baseline(batch_of):
    batch = batch_of([[0, 1, 1]] * 4, [1, 0, 0.25, 7], [0, 0, 0, 1])
    greedy = changed(batch, lambda row, t: replace(t, info={"greedy": row in (2, 3)}))
    credit = group_credit(greedy, RemaxAdvantages())
    assert credit.advantages.values.tolist() == [0, 0.75, 0.75, 0, -0.25, -0.25, *[0] * 6]
    assert credit.metrics["credit/baseline"].value == 3.625
    with pytest.raises(DataError, match=r"draw 0 by 'policy' has 0 greedy attempts.*exactly one"):
        group_credit(batch, RemaxAdvantages())


def test_a_kl_penalty_is_of_tokens_or_of_the_attempt_and_needs_a_reference(batch_of):
    batch = batch_of([[0, 1, 1]], [1.0])
    ref = Column.per_token("ref_logprobs", batch, np.array([7.0, -1.0, -2.0]))
    kl = KlInReward(coef=0.1)
    whitened = group_credit(batch, ReinforcePpAdvantages(), ref=ref, kl=kl)
    assert whitened.metrics["credit/kl"].value == pytest.approx(1.5)
    # Returns are 1 - 0.1 - 0.2 and 1 - 0.2, whatever the reference says of the token that was read.
    np.testing.assert_allclose(whitened.advantages.values, [0, -np.sqrt(0.5), np.sqrt(0.5)], rtol=1e-4)
    pair = batch_of([[0, 1, 1], [0, 1, 1]], [1.0, 0.0], [3, 3])
    both = Column.per_token("ref_logprobs", pair, np.array([7.0, -1.0, -2.0, np.nan, -0.5, 0.0]))
    left = group_credit(pair, RlooAdvantages(), ref=both, kl=kl)
    # Rewards are 1 - 0.1 (1 + 2) and 0 - 0.1 0.5.
    np.testing.assert_allclose(left.advantages.values, [0, 0.75, 0.75, 0, -0.75, -0.75])
    assert left.metrics["credit/kl"].value == pytest.approx(3.5 / 4)
    silent = batch_of([[0, 1, 1], [0, 0, 0]], [0.5, 1.0], [3, 3])  # one that wrote nothing keeps its reward
    none = Column.per_token("ref_logprobs", silent, np.zeros(6))
    np.testing.assert_allclose(
        group_credit(silent, RlooAdvantages(), ref=none, kl=kl).advantages.values[:3], [0, -0.5, -0.5]
    )
    named = batch_of([[1]], [1.0])
    with pytest.raises(ConfigError, match=r"kl_coef=0.1 .*gdpo has several"):
        group_credit(named, GdpoAdvantages(), ref=Column.per_token("ref_logprobs", named, np.zeros(1)), kl=kl)
    with pytest.raises(ConfigError, match=r"kl_coef=0.1 .*no reference log-probs.*set kl_coef=0"):
        gae_credit(batch, ref, kl=kl)


def test_gae_credit_adds_the_kl_penalty(batch_of):
    batch = batch_of([[0, 1, 1]], [1.0])
    values = Column.per_token("values", batch, np.zeros(3))
    ref = Column.per_token("ref_logprobs", batch, np.array([7.0, -1.0, -2.0]))
    settings = GaeConfig(lam=1.0, whiten=False)
    credit = gae_credit(batch, values, settings, ref=ref, kl=KlInReward(coef=0.1))
    np.testing.assert_allclose(credit.advantages.values, [0, 0.7, 0.8])
    assert credit.metrics["credit/kl"].value == pytest.approx(1.5)
    assert credit.metrics["credit/explained_variance"].value == pytest.approx(0)


def test_gae_credit_has_two_lambdas_one_by_length(batch_of):
    batch = batch_of([[1, 1, 1, 1], [1, 1, 0, 0]], [1.0, 1.0], [0, 0])
    values = Column.per_token("values", batch, np.zeros(8))
    settings = GaeConfig(lam=None, length_alpha=0.5, lam_value=1.0, whiten=False)
    credit = gae_credit(batch, values, settings)
    assert credit.advantages.values.tolist() == [0.125, 0.25, 0.5, 1, 0, 1, 0, 0]
    assert credit.returns is not None and credit.returns.values.tolist() == [1, 1, 1, 1, 1, 1, 0, 0]


def test_a_lambda_by_length_does_not_fall_below_the_least():
    with pytest.raises(ValidationError, match="lam=null and length_alpha=null leave the advantages without a lambda"):
        GaeConfig(lam=None)
    mask, offsets = np.ones(1004, np.uint8), np.array([0, 4, 1004])
    assert length_adaptive_lambdas(mask, offsets, 0.05).tolist() == [0.0, 0.98]
    assert length_adaptive_lambdas(mask, offsets, 0.05, least=0.95).tolist() == [0.95, 0.98]


def test_gdpo_reads_rewards_by_name(batch_of):
    batch = batch_of([[1]] * 4, [0, 0, 0, 0], [0, 0, 1, 1])
    rewards = [{"a": 1.0, "b": None}, {"a": 0.0, "b": None}, {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 0.0}]
    named = changed(batch, lambda row, t: replace(t, rewards=rewards[row]))
    credit = group_credit(named, GdpoAdvantages())
    np.testing.assert_allclose(credit.advantages.values, np.array([1, -1, 1, -1]) * np.sqrt(3) / 2, rtol=1e-5)
    assert credit.metrics["credit/constant_groups"].value == 0
    only_a = group_credit(named, GdpoAdvantages(weights={"a": 2.0}))
    assert only_a.advantages.values[2:].tolist() == [0, 0] and only_a.metrics["credit/constant_groups"].value == 0.5
    with pytest.raises(ConfigError, match=r"weights name the reward 'c'.*a, b"):
        group_credit(named, GdpoAdvantages(weights={"c": 1.0}))
    with pytest.raises(RewardError, match=r"no named rewards"):
        group_credit(batch, GdpoAdvantages())
    for wrong in (None, float("nan")):
        broken = changed(named, lambda row, t, wrong=wrong: replace(t, rewards={"a": wrong if row == 3 else 1.0}))
        with pytest.raises(RewardError, match=r"sample=3.* for the reward 'a'.*or None to all"):
            group_credit(broken, GdpoAdvantages())


def test_maxrl_refuses_rewards_below_zero(batch_of):
    with pytest.raises(RewardError, match=r"the reward -1.*0 or more"):
        group_credit(batch_of([[1], [1]], [1, -1], [0, 0]), MaxRlAdvantages())


@pytest.mark.parametrize("reward", [None, float("nan")])
def test_a_missing_reward_is_named(batch_of, reward):
    with pytest.raises(RewardError, match=r"Key\(draw=0.*Judge every group"):
        judged_rewards(batch_of([[0, 1]], [reward]))


@pytest.mark.parametrize("type", TYPES)
def test_an_empty_batch_has_an_empty_credit(type):
    empty = Batch(groups=())
    assert group_credit(empty, CONFIGS.validate_python({"type": type})).advantages.values.shape == (0,)
    assert gae_credit(empty, Column.per_token("values", empty, np.zeros(0))).advantages.values.shape == (0,)


def test_a_group_without_trained_tokens_counts_in_the_rewards(batch_of):
    batch = batch_of([[0, 1], [0, 0]], [1.0, 0.0], [0, 0])
    assert group_credit(batch, CENTRED).advantages.values.tolist() == [0, 0.5, 0, 0]


def test_only_losses_load_torch():
    code = (
        "import sys\nfrom stretto.algorithms import advantages, aggregation, schedules\n"
        "print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
