"""What samples predict: formulas by hand, the model sampled for real and on fakes."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.api.audit.auditing import AuditOptions, audit
from stretto.api.audit.learning import flat_share
from stretto.errors import ConfigError
from stretto.runtime.build import Given

OWN = """
from stretto import workflow
from stretto.types import Prompt, StepReport
from stretto.workflows.nodes import collect, advantages, report, rollout, score, update_policy


@workflow
def own(prompt: Prompt, *, n: int = 3) -> StepReport:
    group = rollout(prompt, n=n)
    scored = score(group)
    batch = collect(scored)
    credit = advantages(batch)
    learn = update_policy(batch, credit=credit)
    return report(learn)
"""


def test_flat_share_by_hand():
    # one prompt, 1 of 2 right: a = (1/2 + 1, 1/2 + 1), A = 3; E[p^2] = 1.5 * 2.5 / (3 * 4), twice
    assert flat_share([[0.0, 1.0]], 2, strength=1) == pytest.approx(2 * 1.5 * 2.5 / 12)
    # nothing but 0 was ever seen: nothing else is expected
    assert flat_share([[0.0] * 4] * 3, 8) == pytest.approx(1.0)
    # two prompts, all right and all wrong: a = (0.5 + 4, 0.5), A = 5; E = (4.5 * 5.5 + 0.5 * 1.5) / (5 * 6)
    assert flat_share([[1.0] * 4, [0.0] * 4], 2, strength=1) == pytest.approx((4.5 * 5.5 + 0.5 * 1.5) / 30)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8), min_size=1, max_size=6))
def test_flat_share_is_a_share_that_falls_with_n(rewards):
    shares = [flat_share(rewards, n) for n in (1, 2, 4, 8)]
    assert shares[0] == pytest.approx(1.0)
    assert all(0 <= later <= earlier + 1e-12 for earlier, later in pairwise(shares))


def test_flat_share_is_near_the_truth():
    rng = np.random.default_rng(0)
    for a, b in ((0.5, 1.5), (0.1, 0.1), (4.0, 4.0)):
        rates = rng.beta(a, b, 400)
        truth = float(np.mean(rates**8 + (1 - rates) ** 8))
        guess = flat_share([list((rng.random(8) < p).astype(float)) for p in rates], 8)
        assert abs(guess - truth) < 0.05, (a, b, guess, truth)


def run(recipe, questions, **options):
    return audit(recipe, given=Given(prompts=questions), options=AuditOptions(**options))


@pytest.fixture
def own_rewards(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "broken_rewards", raising=False)


def test_a_model_that_gets_nothing_right(recipe_of, questions):
    report = run(recipe_of(("reward.workers=0",)), questions)
    model = report.model
    assert (model.prompts, model.samples, model.n, model.groups_per_step) == (
        12,
        256,
        4,
        4,
    )  # all equal: on to 64 draws
    assert (model.mean_reward, model.flat_observed, model.useful_groups) == (0.0, 1.0, 0.0)
    assert model.tokens_per_s > 0 and model.rollout_s > 0 and model.share_truncated == 1.0
    found = {f.code: f for f in report.findings}
    flat = found["model.flat"]
    assert flat.severity == "problem" and "All 256 samples of 12 prompts got 0" in flat.message and not report.ok
    assert all(key in flat.remedy for key in ("warmup", "easier prompts", "sampling.n", "reward.use"))
    assert "sampling.max_tokens" in found["model.truncated"].remedy


@pytest.mark.parametrize("type", ["remax", "reinforce-pp", "dapo"])
def test_what_is_counted_are_the_samples_and_what_their_answers_are_worth(recipe_of, questions, type):
    # a greedy attempt is no sample; a charge on length is no reward, and makes no difference between answers
    keys = ("reward.workers=0", f"algorithm.type={type}", "sampling.max_tokens=9")
    report = run(recipe_of(keys), questions)
    model = report.model
    assert (model.mean_reward, model.samples) == (0.0, 256)
    assert (model.useful_groups, model.flat_expected) == ((0.0, pytest.approx(1.0)) if type == "dapo" else (None, None))
    flat = {f.code: f for f in report.findings}["model.flat"]
    assert flat.severity == "problem" and ("advantages" in flat.message) == (type == "dapo")


def test_groups_of_one_are_no_fault_where_nothing_is_compared_with_siblings(recipe_of, questions, own_rewards):
    keys = ("reward.use=broken_rewards:draws_lots", "reward.workers=0", "sampling.n=1", "algorithm.type=reinforce-pp")
    report = run(recipe_of(keys), questions)
    assert 0 < report.model.mean_reward < 1
    assert "model.zero_variance" not in {f.code for f in report.findings}


def test_before_a_warm_up_it_is_only_a_note(recipe_of, questions):
    report = run(recipe_of(("reward.workers=0",), warmup={"max_steps": 2}, evaluate={"every": None}), questions)
    assert report.ok and {f.code: f.severity for f in report.findings}["model.flat"] == "note"


def test_a_task_that_is_solved(recipe_of, questions, own_rewards):
    report = run(recipe_of(("reward.workers=0", "reward.use=broken_rewards:pays_for_anything")), questions)
    assert {f.code: f.severity for f in report.findings}["model.solved"] == "problem"


def test_fewer_samples_and_prompts(recipe_of, questions):
    report = run(recipe_of(("reward.workers=0",)), questions, prompts=5, samples=2)
    assert (report.model.prompts, report.model.samples, report.model.n) == (5, 10, 4)


def test_few_samples_are_no_problem(recipe_of, questions, own_rewards):
    report = run(recipe_of(("reward.workers=0",)), questions, prompts=2, samples=2)
    flat = {f.code: f for f in report.findings}["model.flat"]
    assert flat.severity == "warning" and report.ok
    assert "All 4 samples of 2 prompts got 0 (there were no more, and 4 say little)" in flat.message
    assert "--seconds=120 or --samples=16" in flat.remedy and "warmup" in flat.remedy
    report = run(recipe_of(("reward.workers=0",)), questions, samples=32, budget_s=1e-9)
    flat = {f.code: f for f in report.findings}["model.flat"]
    assert flat.severity == "warning" and "All 64 samples of 2 prompts got 0 (the time was up" in flat.message
    recipe = recipe_of(("reward.workers=0", "reward.use=broken_rewards:pays_for_anything"))
    report = run(recipe, questions, prompts=2, samples=2)
    assert {f.code: f.severity for f in report.findings}["model.solved"] == "warning"


def test_a_workflow_of_ones_own(recipe_of, questions, tmp_path, monkeypatch):
    (tmp_path / "own_flow.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = recipe_of(("reward.workers=0",), workflow="own_flow:own", sampling={"max_tokens": 8})
    report = run(recipe, questions)
    assert report.model.samples == 64 * 3 and report.model.n == 3
    assert report.reward.timing.size == 3


def test_a_reward_that_fails_on_what_the_model_writes(recipe_of, questions, own_rewards):
    recipe = recipe_of(("reward.workers=0", "reward.use=broken_rewards:refuses_strange_signs"))
    report = run(recipe, questions)
    assert {f.code: f.severity for f in report.findings}["model.error"] == "problem"


def test_the_real_model_samples_what_the_first_step_would(recipe_of, questions):
    recipe = recipe_of(
        ("reward.workers=0", "sampling.max_tokens=12"),
        engine={"type": "native", "slots": 16},
        backend={"type": "torch", "threads": 1},
    )
    first, second = (run(recipe, questions, prompts=3) for _ in range(2))
    assert first.model.samples == 12 and first.model.distinct == 1.0
    assert first.model.written_tokens == second.model.written_tokens
    assert [f.examples for f in first.findings] == [f.examples for f in second.findings]


def test_a_number_of_samples_that_the_workflow_refuses(recipe_of, questions, tmp_path):
    graph = tmp_path / "flow.yaml"
    from stretto.graph import dump_yaml
    from stretto.workflows.builtin import WORKFLOWS

    graph.write_text(dump_yaml(WORKFLOWS["grpo"].graph(n=3)))
    recipe = recipe_of(("reward.workers=0",), workflow=str(graph), sampling={"max_tokens": 8})
    with pytest.raises(ConfigError, match=r"sampling.n"):
        run(recipe, questions, samples=2)
