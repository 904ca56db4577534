"""Faults of data are found, with figures and examples."""

import json

import pytest

from stretto.api.audit.data import look_at_data, prompts_key
from stretto.runtime.build import Given, prepare


def look(recipe, prompts):
    figures, findings = look_at_data(prepare(recipe, Given(prompts=prompts)))
    return figures, {f.code: f for f in findings}


def rows(n: int, answer: str = "x{}") -> list[dict[str, str]]:
    return [{"prompt": f"question {i}", "answer": answer.format(i)} for i in range(n)]


def test_sound_data_has_no_finding(recipe_of, questions):
    figures, found = look(recipe_of(), questions)
    assert found == {}
    assert (figures.num_train, figures.num_held_out, figures.num_answers, figures.num_duplicates) == (12, 0, 12, 0)
    assert figures.passes == 1.0 and figures.max_tokens == 32
    assert figures.answer_tokens.lowest == 6 and figures.answer_tokens.highest == 11  # with the end token


def test_leaks_into_held_out(recipe_of):
    recipe = recipe_of(("prompts.held_out=0.5",))
    _, found = look(recipe, rows(10) + rows(10))
    leak = found["data.leak"]
    assert leak.severity == "problem" and "held-out prompts are trained on" in leak.message
    assert "prompts.unique" in leak.remedy and leak.examples


def test_doubles_and_conflicts(recipe_of):
    _, found = look(recipe_of(), [*rows(10), {"prompt": "question 3", "answer": "x3"}])
    assert found["data.duplicate"].severity == "note" and "1 of 11" in found["data.duplicate"].message
    _, found = look(recipe_of(), [*rows(10), {"prompt": "question 3", "answer": "y"}])
    conflict = found["data.conflict"]
    assert conflict.severity == "warning" and {e.answer for e in conflict.examples} == {"x3", "y"}


@pytest.mark.parametrize(("bad", "severity"), [(1, "warning"), (5, "problem")])
def test_answers_that_are_empty_or_not_there(recipe_of, bad, severity):
    empty = [{"prompt": f"e{i}", "answer": " "} for i in range(bad)]
    _, found = look(recipe_of(), [*rows(40), *empty])
    assert (found["data.empty"].severity, f"{bad} of {40 + bad}" in found["data.empty"].message) == (severity, True)
    lacking = [{"prompt": f"e{i}"} for i in range(bad)]
    brief = recipe_of(("reward.use=length", "reward.with={target: 4, width: 8}"))  # exact_match would refuse them
    _, found = look(brief, [*rows(40), *lacking])
    assert found["data.missing"].severity == severity


def test_answers_that_do_not_fit_the_budget(recipe_of):
    recipe = recipe_of(("sampling.max_tokens=4",))
    _, found = look(recipe, [*rows(10), {"prompt": "long", "answer": "a" * 30}])
    budget = found["data.budget"]
    assert budget.severity == "problem"
    assert "1 of 11" in budget.message and "31 tokens" in budget.message and "sampling.max_tokens=31" in budget.remedy


def test_answers_that_the_model_cannot_write(recipe_of):
    _, found = look(recipe_of(), [*rows(10), {"prompt": "greek", "answer": "\u03b1"}])
    assert found["data.tokens"].severity == "problem" and "model.path" in found["data.tokens"].remedy


def test_passes(recipe_of):
    _, found = look(recipe_of(), rows(3))
    assert found["data.few"].severity == "warning" and "schedule.groups_per_step=3" in found["data.few"].remedy
    _, found = look(recipe_of(), rows(100))
    unseen = found["data.unseen"]
    assert unseen.severity == "note" and "12 of 100" in unseen.message and "steps=25" in unseen.remedy


def test_the_key_of_a_source(recipe_of, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows(10) + rows(1, "other")))
    recipe = recipe_of(prompts={"type": "jsonl", "path": str(file), "held_out": 0.0})
    assert prompts_key(recipe) == "prompts.path"
    _, found = look(recipe, None)
    assert "prompts.path" in found["data.conflict"].remedy
    assert prompts_key(recipe_of(prompts={"type": "builtin"})) == "prompts.name"
    assert prompts_key(recipe_of()) == "prompts.type"
