"""``stretto.session``: a loop of one's own gives what a run gives, and leaves nothing behind."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

import stretto
from stretto.algorithms.advantages import group_credit
from stretto.algorithms.losses import Tokens
from stretto.errors import ConfigError, DataError, RewardError, StoreError, UserError
from stretto.types import Batch, Column

PROMPTS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
SETTINGS = {
    "prompts": PROMPTS,
    "sampling": {"n": 4, "max_tokens": 6},
    "schedule": {"groups_per_step": 4},
    "backend": {"lr": 1e-3, "threads": 1},
    "seed": 3,
}


def digits(prompt, trajectory):
    return sum(c.isdigit() for c in trajectory.text) / 6


def plain_surrogate(tokens: Tokens, *, scale: float = 1.0) -> torch.Tensor:
    return tokens.weighted_sum(-scale * tokens.column("advantages") * tokens.policy_logprobs())


def weights_of(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def test_the_loop_of_a_run_gives_the_bits_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = stretto.train("grpo", reward=digits, steps=3, **SETTINGS)
    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        rewards = []
        for _ in range(3):
            groups = s.rollout(s.prompts(4))
            rewards.append(sum(t.reward for g in groups for t in g.trajectories) / 16)
            report = s.train(groups)
            assert not report.skipped
            s.publish()
        assert s.version == 3
        s.export(tmp_path / "mine")
    assert rewards == pytest.approx([value for _, value in run.history("reward/mean")], rel=1e-14)
    theirs, mine = weights_of(run.path / "model"), weights_of(tmp_path / "mine")
    assert theirs.keys() == mine.keys()
    assert all(np.array_equal(theirs[name], mine[name]) for name in theirs)


def test_an_update_of_ones_own_equals_the_built_in_one(tmp_path):
    """On policy, the clipped surrogate's gradient is that of the plain one."""
    exported = []
    for loss in ("clip", plain_surrogate):
        with stretto.session("grpo", reward=digits, **SETTINGS) as s:
            batch = stretto.Batch(groups=tuple(s.rollout(s.prompts(4), n=8)))
            credit = group_credit(batch)
            report = s.update(batch, credit.advantages, loss=loss)
            assert report.skipped is None
            assert report.metrics["sampler_gap_max"].value < 1e-4
            s.export(tmp_path / f"of-{len(exported)}")
        exported.append(weights_of(tmp_path / f"of-{len(exported)}"))
    for name, value in exported[0].items():
        assert np.allclose(value, exported[1][name], atol=2e-6), name


def test_settings_reach_the_loss_and_unknown_ones_are_refused():
    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        batch = stretto.Batch(groups=(s.rollout(s.prompts(1)[0]),))
        advantages = Column.per_token("advantages", batch, np.ones(batch.num_tokens, np.float32))
        losses = [
            s.update(batch, advantages, loss=plain_surrogate, lr=1e-12, scale=k).metrics["loss"].value for k in (1, 2)
        ]
        assert losses[1] == pytest.approx(2 * losses[0], rel=1e-5)
        with pytest.raises(ConfigError, match="no setting 'scal'"):
            s.update(batch, advantages, loss=plain_surrogate, scal=2)
        with pytest.raises(ConfigError, match=r"returned a tensor of shape \(\d+,\)"):
            s.update(batch, advantages, loss=lambda tokens: tokens.policy_logprobs())


def test_saved_and_loaded_it_goes_on_to_the_same_bits(tmp_path):
    def steps(s, count):
        for _ in range(count):
            s.train(s.rollout(s.prompts(4)))
            s.publish()

    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        steps(s, 1)
        s.save(tmp_path / "at-1")
        with pytest.raises(StoreError, match="not empty"):
            s.save(tmp_path / "at-1")
        steps(s, 2)
        s.export(tmp_path / "whole")
    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        s.load(tmp_path / "at-1")
        assert s.version == 1
        steps(s, 2)
        s.export(tmp_path / "parts")
        with pytest.raises(StoreError, match="overwrites nothing"):
            s.export(tmp_path / "parts")
        with pytest.raises(StoreError, match=r"no session\.json"):
            s.load(tmp_path)
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_a_prompt_made_on_the_spot_and_an_evaluation():
    settings = {**SETTINGS, "prompts": {"type": "builtin", "max": 9}}
    with stretto.session("grpo", reward="exact_match", **settings) as s:
        group = s.rollout(s.prompt("1+1=", answer="2"), n=3)
        assert len(group.trajectories) == 3
        assert all(t.reward is not None for t in group.trajectories)
        assert s.evaluate(limit=5).n == 5
        assert len(s.held_out) == 20
        assert len(s.train_prompts) == 80
        logprobs = s.score(stretto.Batch(groups=(group,)))
        sampled = np.concatenate([t.logprobs_T for t in group.trajectories])
        assert np.abs(logprobs.values - sampled).max() < 1e-4


def test_what_a_loop_gives_is_checked_where_it_comes_in():
    # pitfalls 23, 35
    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        prompt = s.prompts(1)[0]
        group = s.rollout(prompt)
        batch = stretto.Batch(groups=(group,))
        odd = replace(prompt, token_ids=np.array([5.5, 9.0]))
        refused = [
            (lambda: s.rollout("1+1="), r"given a str \('1\+1='\)"),
            (lambda: s.rollout(None), "given a NoneType"),
            (lambda: s.rollout(odd), "token_ids"),
            (lambda: s.rollout(prompt, n=0), "n=0 must be a whole number, 1 or more"),
            (lambda: s.rollout(prompt, n=True), "n=True"),
            (lambda: s.prompts(-1), "prompts=-1"),
            (lambda: s.prompt(3), "the prompt is 3"),
            (lambda: s.prompt("1", uid=3), "uid=3"),
            (lambda: s.prompt("1", answer=object()), "no JSON"),
            (lambda: s.prompt("1", answer=float("nan")), "no JSON"),
            (lambda: s.train(3), "a int came"),
            (lambda: s.train([3]), "a int came"),
            (lambda: s.train([group, group]), "came twice"),
            (lambda: s.update(batch, loss="sft", lr=float("nan")), "lr=nan"),
            (lambda: s.update(batch, loss="sft", aggregate="mean"), "aggregate='mean'"),
            (
                lambda: s.update(batch, loss="sft", aggregate="token_sum_norm"),
                "divides by a constant, and norm is not set",
            ),
            (lambda: s.score(batch, "logprob"), "Did you mean 'logprobs'"),
            (lambda: s.evaluate(0), "limit=0"),
        ]
        for call, says in refused:
            with pytest.raises(UserError, match=says):
                call()
        assert s.rollout(prompt, n=2).draw == group.draw + 1  # what was refused used up nothing
    with pytest.raises(ConfigError, match="closed"):
        s.__enter__()


def test_a_saved_session_is_of_one_recipe(tmp_path):
    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        s.save(tmp_path / "at")
        with pytest.raises(StoreError, match="cannot be used"):
            s.save(tmp_path / "at" / "session.json")
    with stretto.session("grpo", reward=digits, **{**SETTINGS, "seed": 99}) as s:
        with pytest.raises(StoreError, match="another seed"):
            s.load(tmp_path / "at")
        (tmp_path / "at" / "session.json").write_text("{")
        with pytest.raises(StoreError, match="is damaged"):
            s.load(tmp_path / "at")


# --- nothing is left, whatever happens -----------------------------------------------------------------------------


@pytest.fixture
def left_behind():
    """Processes and threads that a test has begun and not ended; other tests may have left Python's own."""
    before = psutil.Process().children(recursive=True)
    return lambda: _beside(before)


def _beside(before):
    children = [process for process in psutil.Process().children(recursive=True) if process not in before]
    threads = [t.name for t in threading.enumerate() if t.name.startswith("stretto")]
    return children, threads


@pytest.mark.parametrize("how", ["return", "raise", "reward", "close", "bad model"])
def test_nothing_is_left(how, tmp_path, left_behind):
    def failing(prompt, trajectory):
        raise ValueError("no")

    expected = {"raise": KeyError, "reward": RewardError, "bad model": DataError}.get(how)
    reward = failing if how == "reward" else digits
    extra = {"model": str(tmp_path)} if how == "bad model" else {}

    def work():
        with stretto.session("grpo", reward=reward, **SETTINGS, **extra) as s:
            s.rollout(s.prompts(2))
            if how == "raise":
                raise KeyError("mine")
            if how == "close":
                s.close()
                with pytest.raises(ConfigError, match="closed"):
                    s.publish()

    if expected is None:
        work()
    else:
        with pytest.raises(expected):
            work()
    assert left_behind() == ([], [])


def test_ctrl_c_comes_through_once_what_ran_has_ended(left_behind, request):
    """And closing is not cut short by another."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which workers of the tests ignore
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    calls: list[str] = []

    def slow() -> None:
        calls.append("begun")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        calls.append("ended")

    def hit() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        calls.append("closed")

    s = stretto.session("grpo", reward=digits, **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        s._run(s._parts.worker.call(slow))
    assert len(s.rollout(s.prompts(1)[0]).trajectories) == 4
    s._disposer.own("late", 1, hit)
    with pytest.raises(KeyboardInterrupt):
        s.close()
    assert calls == ["begun", "ended", "closed"]
    assert left_behind() == ([], [])


def test_an_exit_in_a_loss_comes_out_where_it_was_called(left_behind):
    def leaves(tokens):
        raise SystemExit(7)

    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        groups = s.rollout(s.prompts(2), n=4)
        with pytest.raises(SystemExit):
            s.update(Batch(groups=tuple(groups)), loss=leaves)
        s.publish()
    assert left_behind() == ([], [])


def test_what_a_session_does_not_run_is_refused(tmp_path, left_behind):
    with pytest.raises(ConfigError, match="has a warm-up, which a session does not run"):
        stretto.session("quickstart")
    with pytest.raises(ConfigError, match="steps"):
        stretto.session("grpo", prompts=PROMPTS, reward=digits, backend={"lr_decay": "linear"})
    with pytest.raises(ConfigError, match=r"missing\.yaml does not exist"):
        stretto.session("missing.yaml")
    assert left_behind() == ([], [])


def test_half_a_run_is_no_matter_of_a_session():
    with pytest.raises(ConfigError, match=r"in a session the loop does\. Leave debug out"):
        stretto.session("grpo", prompts=["a "], reward=lambda prompt, trajectory: 0.0, debug={"train": False})


def test_a_recipe_by_name_file_and_mapping_are_one(tmp_path):
    from stretto.api.arguments import ask

    file = tmp_path / "mine.yaml"
    file.write_text("extends: [quickstart]\nsteps: 7\n")
    tree = {"steps": 7, "algorithm": {"type": "grpo"}}
    assert ask("quickstart", {"steps": 7}).recipe == ask(str(file), {}).recipe
    assert ask(tree, {"sampling": {"n": 3}}).recipe == ask("grpo", {"steps": 7, "sampling": {"n": 3}}).recipe
    kept = ask(ask("quickstart", {}).recipe, {"backend": {"lr": 1.0}}).recipe
    assert kept.backend.lr == 1.0
    assert kept.backend.lr_decay == "linear"
    assert json.loads(kept.model_dump_json())["warmup"] is not None
    assert ask("quickstart", {"warmup": None}, reward="exact_match").recipe.reward.workers == 0


def test_rollouts_from_weights_that_were_not_published_are_refused():
    """pitfall 9: the bound on staleness holds in a loop of one's own."""
    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        s.train(s.rollout(s.prompts(4)))
        with pytest.raises(ConfigError, match=r"1 update\(s\) have not been published.*Call publish\(\)"):
            s.rollout(s.prompts(1))
        s.publish()
        s.rollout(s.prompts(1))
    with stretto.session("grpo", reward=digits, **SETTINGS | {"schedule": {"max_staleness": 1}}) as s:
        s.train(s.rollout(s.prompts(1)[0]))
        s.rollout(s.prompts(1))


def test_what_cannot_be_rolled_out_or_trained_on_is_said():
    with stretto.session("grpo", reward=digits, **SETTINGS) as s:
        with pytest.raises(ConfigError, match=r"given a str \('hello'\).*prompt\(\.\.\.\)"):
            s.rollout(["hello"])
        with pytest.raises(ConfigError, match="no group was given"):
            s.train([])
        with pytest.raises(DataError, match=r"has 14 tokens.*max_len\": 20"):
            s.prompt("much too long")
        with pytest.raises(DataError, match="no JSON"):
            s.prompt("a", answer=object())
    with stretto.session("grpo", reward=digits, engine={"max_len": 64}, **SETTINGS) as s:
        assert len(s.rollout(s.prompt("much too long"), n=2).trajectories) == 2


def test_a_partial_function_goes_by_the_name_of_its_function(tmp_path, monkeypatch):
    from functools import partial

    monkeypatch.chdir(tmp_path)

    def scaled(prompt, trajectory, scale):
        return scale * trajectory.num_written

    with stretto.session("grpo", reward=partial(scaled, scale=0.5), **SETTINGS) as s:
        assert set(s.rollout(s.prompts(1)[0]).trajectories[0].rewards) == {"scaled"}
