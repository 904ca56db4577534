"""Values by step: how they are written, read, bounded and looked up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.algorithms.schedules import lr_at
from stretto.config.algorithms import LossTerms
from stretto.config.by_step import ByStep, at_step, most, scheduled, told, value_at
from stretto.config.fields import given_tree
from stretto.config.load import load_recipe, recipe_from_mapping
from stretto.config.overrides import apply_resume_overrides
from stretto.errors import ConfigError, ResumeError

BASE = {"steps": 10}


def test_a_value_holds_until_the_next_and_the_last_stays():
    held = ByStep(at=((0, 1.0), (3, 0.5)))
    assert [value_at(held, step) for step in range(5)] == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert value_at(0.7, 4) == 0.7 and most(held) == 1.0 and most(0.7) == 0.7


def test_a_straight_line_between():
    line = ByStep(at=((0, 1.0), (4, 0.0), (6, 0.5)), between="linear")
    assert [value_at(line, step) for step in range(8)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.25, 0.5, 0.5]


@given(
    st.dictionaries(st.integers(0, 50), st.floats(0.01, 100), max_size=6),
    st.floats(0.01, 100),
    st.sampled_from(["hold", "linear"]),
    st.integers(0, 60),
)
def test_values_stay_among_those_written_and_survive_being_written(more, first, between, step):
    at = {**more, 0: first}
    recipe = recipe_from_mapping({**BASE, "sampling": {"temperature": {"at": at, "between": between}}})
    temperature = recipe.sampling.temperature
    assert min(at.values()) * (1 - 1e-12) <= value_at(temperature, step) <= max(at.values()) * (1 + 1e-12)
    assert step not in at or value_at(temperature, step) == at[step]
    assert recipe_from_mapping(recipe.model_dump(mode="json")) == recipe
    assert recipe_from_mapping(given_tree(recipe)) == recipe


def test_yaml_python_and_overrides_say_the_same(tmp_path):
    (tmp_path / "base.yaml").write_text("steps: 10\nsampling: {temperature: {0: 1.0, 7: 0.2}}\n")
    (tmp_path / "r.yaml").write_text("extends: base.yaml\nsampling:\n  temperature:\n    0: 1.0\n    5: 0.8\n")
    file = load_recipe(str(tmp_path / "r.yaml"), packaged=tmp_path).recipe
    python = recipe_from_mapping({**BASE, "sampling": {"temperature": {0: 1, 5: 0.8}}})
    typed = recipe_from_mapping(BASE, ["sampling.temperature={0: 1.0, 5: 0.8}"])
    assert file == python == typed  # a value over another replaces it whole
    assert recipe_from_mapping(given_tree(file), ["sampling.temperature=0.5"]).sampling.temperature == 0.5


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sampling.temperature={1: 1.0}", "no value holds from step 0"),
        ("sampling.temperature={}", "no value holds from step 0"),
        ("sampling.temperature={0: 1.0, 5: 0}", "0.001 or more"),
        ("sampling.temperature={0: warm}", "'warm' is no number"),
        ("sampling.temperature={0: true}", "'True' is no number"),
        ("backend.lr={0: 1e-3, later: 1e-4}", "'later' is no step"),
        ("backend.lr={0: 1e-3, 4: -1}", "above 0"),
        ("backend.lr={at: {0: 1e-3}, between: cubic}", "between: linear"),
        ("backend.lr={'1': 1e-3, 1: 1e-4, 0: 1}", "written twice"),
        ("schedule.max_staleness={0: 0.5}", "no whole number"),
        ("schedule.max_staleness={at: {0: 0, 5: 1}, between: linear}", "a straight line is not"),
        ("schedule.max_staleness={0: 0, 5: 2}", "no faster than 1"),
        ("algorithm.kl_target=0.1 algorithm.kl_coef={0: 0.1}", "sets it by step"),
    ],
)
def test_what_makes_no_sense_is_refused(override, said):
    with pytest.raises(ConfigError, match=said):
        recipe_from_mapping(BASE, override.replace(" algorithm.", "\nalgorithm.").split("\n"))


def test_a_key_that_is_no_step_is_refused_elsewhere_as_before(tmp_path):
    (tmp_path / "r.yaml").write_text("steps: 10\nsampling: {3: 1}\n")
    with pytest.raises(ConfigError, match="not text"):
        load_recipe(str(tmp_path / "r.yaml"), packaged=tmp_path)


def test_the_largest_staleness_decides_what_goes_together():
    falling = recipe_from_mapping(BASE, ["schedule.max_staleness={0: 1, 5: 0}"])
    assert falling.schedule.most_staleness == 1
    with pytest.raises(ConfigError, match="offload"):
        recipe_from_mapping(BASE, ["schedule.max_staleness={0: 0, 5: 1}", "offload.engine=kv"])


def test_a_resume_names_the_value_whole():
    recipe = recipe_from_mapping(BASE, ["sampling.temperature={0: 1.0, 5: 0.8}"])
    with pytest.raises(ResumeError, match=r"sampling.temperature \({0: 1.0, 5: 0.8} -> {0: 1.0, 6: 0.8}\)"):
        apply_resume_overrides(recipe, ["sampling.temperature={0: 1.0, 6: 0.8}"])


def test_sections_are_resolved_and_schedules_found():
    by = ByStep(at=((0, 0.0), (2, 0.1)))
    terms = LossTerms(kl_coef=by, entropy_coef=0.5)
    assert at_step(terms, 1) == LossTerms(kl_coef=0.0, entropy_coef=0.5)
    assert at_step(terms, 2) == LossTerms(kl_coef=0.1, entropy_coef=0.5)
    plain = LossTerms(kl_coef=0.1)
    assert at_step(plain, 3) is plain and at_step("text", 3) == "text"
    recipe = recipe_from_mapping(BASE, ["algorithm.kl_coef={0: 0, 2: 0.1}", "critic.lr={0: 1e-3}"])
    assert dict(scheduled(recipe)) == {"algorithm.kl_coef": by, "critic.lr": ByStep(at=((0, 1e-3),))}
    assert told(by) == "0 from step 0, 0.1 from step 2"


def test_warmup_and_decay_scale_the_rate_of_the_step():
    by = ByStep(at=((0, 1.0), (5, 0.5)))
    rates = [lr_at(s, steps=10, peak=value_at(by, s), warmup=2, decay="linear") for s in (0, 1, 2, 6)]
    assert rates == [0.5, 1.0, 1.0, 0.25]
