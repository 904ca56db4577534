"""The updates of a step: parts with denominators of their own, what is left out, what is imitated, a coefficient that
follows its target."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from stretto.algorithms.advantages import KlInReward, group_credit
from stretto.algorithms.off_policy import correct
from stretto.config.algorithms import AdaptiveKl, ClipCovLoss, ClipLoss, CorrectionConfig, LossTerms, UpdateSettings
from stretto.config.algorithms.estimators import RlooAdvantages
from stretto.config.algorithms.losses import GpgLoss
from stretto.errors import ConfigError
from stretto.testing import make_batch
from stretto.types import Batch, Column, Credit, Metric, UpdateReport
from stretto.workflows.nodes import update_policy
from stretto.workflows.updates import Objective, current_coef, each_part, old_logprobs, run_updates, steer


class Learner:
    """Keeps what every update was given. ``skips``: numbers of updates that it skips."""

    model, step = "policy", 3

    def __init__(self, skips=()):
        self.skips, self.updates = skips, []

    def learn(self, batch, columns, loss):
        self.updates.append((batch, {c.name: c for c in columns}, loss))
        why = "not finite" if len(self.updates) - 1 in self.skips else None
        return UpdateReport(model="policy", metrics={"loss": Metric("sum", 2.0)}, skipped=why)

    def score(self, batch, want):
        return (Column.per_token("logprobs", batch, -np.arange(batch.num_tokens, dtype=np.float64)),)


@dataclass
class Kept:
    """What a node keeps."""

    value: object = None


def objective_of(batch: Batch, **more) -> Objective:
    advantages = Column.per_token("advantages", batch, np.ones(batch.num_tokens))
    return Objective(**{"loss": ClipLoss(), "terms": LossTerms(), "columns": (advantages,), **more})


def test_every_group_is_in_one_part_of_each_pass_and_every_part_has_its_own_denominators():
    # pitfall 29
    batch, learner = make_batch(5), Learner()
    report = run_updates(learner, batch, objective_of(batch), UpdateSettings(epochs=2, minibatches=3))
    parts = [part for part, _, _ in learner.updates]
    assert [len(part.groups) for part in parts] == [1, 2, 2, 1, 2, 2]
    for i in (0, 3):
        assert [g.draw for part in parts[i : i + 3] for g in part.groups] == [g.draw for g in batch.groups]
    for part, columns, _ in learner.updates:
        assert columns["weights"].values.sum() == pytest.approx(1.0)
        assert columns["advantages"].keys == part.keys
    assert report.metrics["loss"].value == 2.0  # the mean of the updates' losses
    assert report.skipped is None


def test_more_parts_than_groups_is_a_part_a_group():
    batch, learner = make_batch(2), Learner()
    run_updates(learner, batch, objective_of(batch), UpdateSettings(minibatches=7))
    assert [len(part.groups) for part, _, _ in learner.updates] == [1, 1]


def test_a_skipped_update_among_several_is_named():
    batch = make_batch(4)
    report = run_updates(Learner(skips=(1,)), batch, objective_of(batch), UpdateSettings(minibatches=4))
    assert report.skipped == "1 of 4 updates: not finite"


def test_a_greedy_attempt_is_not_trained_on():
    batch, learner = make_batch(), Learner()
    group = batch.groups[0]
    marked = replace(group.trajectories[0], info={"greedy": True})
    batch = Batch(groups=(replace(group, trajectories=(marked, *group.trajectories[1:])), *batch.groups[1:]))
    run_updates(learner, batch, objective_of(batch), UpdateSettings())
    weights = learner.updates[0][1]["weights"]
    row = batch.keys.index(marked.key)
    assert not weights.row(row).any()
    assert weights.values.sum() == pytest.approx(1.0)


def test_what_a_correction_rejects_leaves_the_denominators_and_its_weights_come_along():
    batch, learner = make_batch(4), Learner()
    sampled = np.concatenate([t.logprobs_T for t in batch.trajectories]).astype(np.float64)
    place = int(np.flatnonzero(batch.mask)[0])
    moved = sampled.copy()
    moved[place] += 5.0
    config = CorrectionConfig.model_validate({"weights": "token", "reject": {"token": {"upper": 2.0}}})
    correction = correct(batch, Column.per_token("old_logprobs", batch, moved), config)
    run_updates(learner, batch, objective_of(batch, correction=correction), UpdateSettings(minibatches=2))
    joined = {key: row for part, columns, _ in learner.updates for key, row in _rows(part, columns["weights"])}
    weights = np.concatenate([joined[key] for key in batch.keys])
    assert weights[place] == 0
    assert np.count_nonzero(weights) == batch.num_written - 1
    assert all("correction" in columns for _, columns, _ in learner.updates)


def _rows(part, column):
    return [(key, column.row(i)) for i, key in enumerate(part.keys)]


def test_the_attempts_that_were_right_are_imitated():
    batch, learner = make_batch(3), Learner()
    rewards = [1.0, 0.0, 0.5]
    groups = [
        replace(g, trajectories=tuple(replace(t, reward=r) for t in g.trajectories))
        for g, r in zip(batch.groups, rewards, strict=True)
    ]
    batch = Batch(groups=tuple(groups))
    run_updates(learner, batch, objective_of(batch, right_from=1.0), UpdateSettings())
    column = learner.updates[0][1]["imitate"]
    right = [key.draw == batch.groups[0].draw for key in batch.keys]
    assert [bool(column.row(i).any()) for i in range(len(batch.keys))] == right
    assert column.values.sum() == pytest.approx(1.0)


def test_what_is_rejected_of_a_right_attempt_is_not_imitated_nor_counted():
    batch, learner = make_batch(2, rewards=(1.0, 0.0)), Learner()
    sampled = np.concatenate([t.logprobs_T for t in batch.trajectories]).astype(np.float64)
    place = int(np.flatnonzero(batch.mask)[1])
    sampled[place] += 5.0
    config = CorrectionConfig.model_validate({"reject": {"token": {"upper": 2.0}}})
    correction = correct(batch, Column.per_token("old_logprobs", batch, sampled), config)
    run_updates(learner, batch, objective_of(batch, right_from=1.0, correction=correction), UpdateSettings())
    imitate = learner.updates[0][1]["imitate"].values
    assert imitate[place] == 0
    assert np.count_nonzero(imitate) == batch.num_written / 2 - 1
    assert imitate.sum() == pytest.approx(1.0)


def test_a_covariance_loss_is_given_its_choice_once_an_update():
    batch, learner = make_batch(4), Learner()
    loss = ClipCovLoss(cov_min=-100.0, cov_max=100.0, max_fraction=0.5)
    run_updates(learner, batch, objective_of(batch, loss=loss), UpdateSettings(minibatches=2))
    assert [loss.use for _, _, loss in learner.updates] == ["clip_cov", "clip_cov"]
    for part, columns, _ in learner.updates:
        assert 0 < columns["selected"].values.sum() <= part.num_written / 2


def test_old_logprobs_by_kind():
    batch = make_batch()
    recomputed = Column.per_token("old_logprobs", batch, np.full(batch.num_tokens, -3.0))
    sampled = np.concatenate([t.logprobs_T for t in batch.trajectories])
    assert old_logprobs(batch, "detach", None, alpha=None, step=0) is None
    assert old_logprobs(batch, "sampler", None, alpha=None, step=0).values.tolist() == sampled.tolist()
    same = old_logprobs(batch, "recompute", recomputed, alpha=None, step=0)
    assert same.values.tolist() == recomputed.values.tolist()
    half = old_logprobs(batch, "interpolate", recomputed, alpha=0.5, step=0).values
    np.testing.assert_allclose(half, (sampled - 3.0) / 2)
    with pytest.raises(ConfigError, match=r"proximal=recompute needs .*Pass recomputed=logprobs\(batch\)"):
        old_logprobs(batch, "recompute", None, alpha=None, step=0)


def test_the_policy_stays_as_it_is_until_its_start():
    batch, learner = make_batch(), Learner()
    credit = Credit(advantages=Column.per_token("advantages", batch, np.ones(batch.num_tokens)))
    report = update_policy(batch, credit, learner, Kept(), start=4)
    assert (learner.updates, report.skipped, report.metrics["frozen"].value) == ([], None, 1.0)
    report = update_policy(batch, credit, learner, Kept(), start=3)
    assert len(learner.updates) == 1
    assert "frozen" not in report.metrics


def test_settings_that_would_do_nothing_are_refused_where_a_workflow_is_ones_own():
    batch, learner = make_batch(), Learner()
    credit = Credit(advantages=Column.per_token("advantages", batch, np.ones(batch.num_tokens)))
    with pytest.raises(ConfigError, match=r"proximal=detach makes every ratio of clip 1, and of 6 updates"):
        update_policy(batch, credit, learner, Kept(), updates=UpdateSettings(epochs=2, minibatches=3))
    with pytest.raises(ConfigError, match=r"terms.kl_coef=0 leaves that out"):
        update_policy(batch, credit, learner, Kept(), adaptive=AdaptiveKl(target=1.0))
    assert learner.updates == []
    update_policy(batch, credit, learner, Kept(), loss=GpgLoss(), updates=UpdateSettings(minibatches=2))
    assert len(learner.updates) == 2


def test_an_adaptive_coefficient_is_kept_and_follows_its_target():
    batch, kept = make_batch(), Kept()
    adaptive, rows = AdaptiveKl(target=1.0, horizon=100), len(batch.keys)
    far = {"ref_kl": Metric("mean", 100.0 * batch.num_written, batch.num_written)}
    assert current_coef(kept, 0.2, adaptive) == 0.2
    shown = steer(kept, 0.2, adaptive, far, "ref_kl", batch)
    assert shown["kl_coef"].value == 0.2
    assert shown["kl_row"].value == pytest.approx(100.0 * batch.num_written / rows)
    assert current_coef(kept, 0.2, adaptive) == pytest.approx(0.2 * (1 + 0.2 * rows / 100))
    assert current_coef(kept, 0.2, None) == 0.2
    assert current_coef(kept, 0.7, adaptive) == 0.7  # a fork that says so begins anew
    assert current_coef(Kept({"mine": 1}), 0.7, adaptive) == 0.7
    before = dict(kept.value)
    assert steer(kept, 0.2, None, far, "ref_kl", batch) == far
    assert kept.value == before


def test_a_greedy_attempt_is_no_sample_of_the_kl():
    batch, kept, plain = make_batch(), Kept(), Kept()
    group = batch.groups[0]
    marked = replace(group.trajectories[0], info={"greedy": True})
    beside = Batch(groups=(replace(group, trajectories=(marked, *group.trajectories[1:])), *batch.groups[1:]))
    without = Batch(groups=(replace(group, trajectories=group.trajectories[1:]), *batch.groups[1:]))
    adaptive, measured = AdaptiveKl(target=1.0, horizon=100), {"ref_kl": Metric("mean", 0.5)}
    shown = steer(kept, 0.2, adaptive, measured, "ref_kl", beside)
    assert shown["kl_row"] == steer(plain, 0.2, adaptive, measured, "ref_kl", without)["kl_row"]
    assert kept.value == plain.value
    penalty = KlInReward(coef=0.1)
    ref = Column.per_token("ref_logprobs", beside, np.arange(beside.num_tokens) * 1.0)
    with_greedy = group_credit(beside, RlooAdvantages(), ref=ref, kl=penalty).metrics["credit/kl"]
    alone = group_credit(without, RlooAdvantages(), ref=ref.of(without), kl=penalty).metrics["credit/kl"]
    assert with_greedy.value == pytest.approx(alone.value)


def test_columns_may_have_more_rows_than_a_part():
    batch, learner = make_batch(3), Learner()
    whole = Column.per_token("x", batch, np.arange(batch.num_tokens, dtype=np.float64))
    each_part(learner, batch, UpdateSettings(minibatches=3), lambda part, _: ((whole,), None))
    seen = np.concatenate([columns["x"].values for _, columns, _ in learner.updates])
    assert seen.tolist() == whole.values.tolist()
