"""What a resume may change, and what a fork may."""

import pytest

from stretto.config.checking import known_keys
from stretto.config.load import load_recipe
from stretto.config.overrides import RESUME_SAFE_KEYS, Change, apply_overrides, apply_resume_overrides
from stretto.errors import ConfigError, ResumeError
from stretto.recipes import FOLDER


@pytest.fixture
def recipe():
    return load_recipe("quickstart", [], packaged=FOLDER).recipe


def test_safe_keys_exist():
    assert set(RESUME_SAFE_KEYS) <= set(known_keys())


def test_safe_changes_are_applied_and_listed(recipe):
    new, changes = apply_resume_overrides(recipe, ["steps=900", "save.keep_best=null", "seed=0", "reward.timeout_s=60"])
    assert (new.steps, new.save.keep_best) == (900, None)
    assert changes == (
        Change(key="steps", old=1000, new=900),
        Change(key="reward.timeout_s", old=10.0, new=60.0),
        Change(key="save.keep_best", old="held_out/accuracy", new=None),
    )


def test_other_changes_name_fork(recipe):
    with pytest.raises(ResumeError, match=r"cannot change backend.lr \(0.0001 -> 0.1\).*--fork NAME"):
        apply_resume_overrides(recipe, ["backend.lr=0.1", "steps=900"])
    with pytest.raises(ResumeError, match=r"algorithm.type"):
        apply_resume_overrides(recipe, ["algorithm.type=ppo"])
    with pytest.raises(ResumeError, match="warmup"):
        apply_resume_overrides(recipe, ["warmup=null"])


def test_unknown_keys_and_bad_values_are_refused_as_in_train(recipe):
    with pytest.raises(ConfigError, match="Did you mean 'steps'"):
        apply_resume_overrides(recipe, ["stesp=3"])
    with pytest.raises(ConfigError, match=r"evaluate.every=0 cannot be used"):
        apply_resume_overrides(recipe, ["evaluate.every=0"])


def test_a_fork_may_change_anything(recipe):
    new, changes = apply_overrides(recipe, ["algorithm.type=ppo", "backend.lr=1e-3"])
    assert (new.algorithm.type, new.backend.lr) == ("ppo", 1e-3)
    assert {"algorithm.type", "backend.lr", "algorithm.scale", "algorithm.lam"} <= {c.key for c in changes}


def test_nothing_given_changes_nothing(recipe):
    assert apply_resume_overrides(recipe, []) == (recipe, ())
