"""Broken rewards are found, each for what it does; good ones pass. With real reward processes."""

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.api.audit.auditing import AuditOptions, audit
from stretto.config.reference import help_fields
from stretto.errors import ConfigError, UserError
from stretto.runtime.build import Given

BROKEN_REWARDS = Path(__file__).parent

BROKEN = {
    "pays_for_anything": ("reward.constant", "problem"),
    "never_pays": ("reward.gold", "problem"),
    "ignores_the_prompt": ("reward.swapped", "problem"),
    "draws_lots": ("reward.random", "problem"),
    "knows_no_seed": ("reward.process", "problem"),
    "raises_on_empty": ("reward.error", "problem"),
    "nan_sometimes": ("reward.error", "problem"),
    "says_true_in_words": ("reward.error", "problem"),
    "forgets": ("reward.error", "problem"),
    "minds_capitals": ("reward.gold", "problem"),
    "likes_length": ("reward.length", "warning"),
    "looks_at_length_only": ("reward.junk", "problem"),
    "finds_it_anywhere": ("reward.junk", "problem"),
    "pays_for_nothing_said": ("reward.empty", "problem"),
    "pays_half_for_trying": ("reward.junk", "warning"),
    "pays_a_little": ("reward.little", "note"),
    "finds_it_in_a_list": ("reward.listed", "warning"),
    "counts_from_minus_one": ("reward.scale", "warning"),
}
"""What is found of each, and how bad it is."""

SAID = {
    "raises_on_empty": ["IndexError", "broken_rewards.py:", "nothing at all", "trajectory.text[0]"],
    "nan_sometimes": ["nan", "finite number"],
    "says_true_in_words": ["'yes', a str"],
    "forgets": ["returned None"],
    "never_pays": ["12 of 12 (100%)"],
    "minds_capitals": ["4 of 12 (33.3%)"],
    "finds_it_anywhere": ["the prompt again 12"],
    "looks_at_length_only": ["junk as long as its answer 12"],
    "counts_from_minus_one": ["at most 0"],
}
"""What the sentence has in it."""


def keys() -> set[str]:
    return {name for name, _ in help_fields()}


@pytest.mark.parametrize("reward", BROKEN)
def test_a_broken_reward_is_found(audited, reward):
    # in this process and in one of its own: half the start-up, the same findings
    workers = "reward.workers=1" if reward == "draws_lots" else "reward.workers=0"  # only a process is seeded
    report = audited(reward, workers)
    code, severity = BROKEN[reward]
    found = {finding.code: finding for finding in report.findings}
    assert code in found, report.findings
    finding = found[code]
    assert finding.severity == severity, finding
    assert report.ok is (not any(f.severity == "problem" for f in report.findings))
    for words in SAID.get(reward, []):
        assert words in finding.message, finding.message
    for each in report.findings:
        assert each.keys
        assert any(key in each.remedy for key in each.keys), each
        for key in each.keys:
            assert any(known == key or known.startswith(f"{key}.") for known in keys()), key


@pytest.mark.parametrize("reward", ["right", "right_and_brief", "right_later", "exact_match"])
def test_a_good_reward_passes(audited, reward):
    report = audited(reward)
    assert report.ok
    assert [f for f in report.findings if f.severity == "warning"] == []
    rows = {row.kind: row for row in report.reward.rows}
    assert rows["gold"].full == rows["gold"].scored == 12
    assert rows["swapped"].full == rows["empty"].full == rows["words"].full == 0
    assert report.reward.repeated == sum(row.scored for row in report.reward.rows if row.kind not in ("newline",)) - 24


def test_an_answer_that_is_no_text_is_told_as_such(audited):
    rows = [{"prompt": f"{i} plus {i + 1}? ", "answer": 2 * i + 1} for i in range(12)]
    (finding,) = [f for f in audited("right", "reward.workers=0", prompts=rows).findings if f.code == "reward.gold"]
    assert "a int and not text" in finding.remedy and 'str(prompt.data["answer"])' in finding.remedy


def test_a_score_that_the_reward_does_not_give_is_found_before_the_run(audited):
    asked = ("filter.zero_variance=true", "filter.score=rigth")
    (finding,) = [f for f in audited("right_and_brief", *asked).findings if f.code == "reward.score"]
    assert (finding.severity, finding.keys) == ("problem", ("filter.score",))
    assert "which are brief, right" in finding.message and "Did you mean 'right'?" in finding.message
    asked = ("filter.zero_variance=true", "filter.score=right")
    assert not [f for f in audited("right_and_brief", *asked).findings if f.code == "reward.score"]


def test_a_missing_return_is_told_without_a_line_of_ours(audited):
    (finding,) = [f for f in audited("forgets").findings if f.code == "reward.error"]
    assert "returned None" in finding.message and "At:" not in finding.message


def test_state_between_calls_is_found(audited):
    found = {f.code for f in audited("counts_calls", "reward.workers=0").findings}
    assert found & {"reward.process", "reward.random"}


def test_strictness_is_told_and_is_no_fault(audited):
    report = audited("rejects_spaces", "reward.workers=0")
    assert report.ok and not report.findings
    rows = {row.kind: row for row in report.reward.rows}
    assert (rows["newline"].full, rows["spaces"].full, rows["sentence"].full) == (0, 0, 0)


def test_a_reward_that_hangs_meets_its_timeout_and_the_budget(audited):
    report = audited("sleeps", "reward.timeout_s=0.2", budget_s=0.1)
    (finding,) = [f for f in report.findings if f.code == "reward.timeout"]
    assert finding.severity == "problem" and "no answer within 0.2 s" in finding.message
    assert "reward.timeout_s=0.2" in finding.remedy
    assert report.reward.prompts < report.reward.asked


def test_failures_under_drop_are_weighed_by_its_ceiling(audited):
    few = audited("raises_on_empty", "reward.on_error=drop", "reward.max_dropped=0.5", "reward.workers=0")
    assert {f.code: f.severity for f in few.findings}["reward.error"] == "warning"


def test_answers_without_reference(audited):
    prompts = [{"prompt": f"say {i} "} for i in range(6)]
    report = audited("close", "reward.workers=0", prompts=prompts)
    assert report.ok
    assert {row.kind for row in report.reward.rows} == {"empty", "words", "word", "repeated", "echo"}
    assert any("no text or number" in told for told in report.left_out)


def test_one_answer_for_all(audited):
    prompts = [{"prompt": f"say {i} ", "answer": "yes"} for i in range(6)]
    report = audited("right", "reward.workers=0", prompts=prompts)
    assert report.ok
    assert any("all prompts have the same answer" in told for told in report.left_out)


def test_a_supervised_recipe_has_no_reward_to_try(recipe_of, questions):
    recipe = recipe_of(("algorithm.type=sft",), sampling={"max_tokens": 32})
    report = audit(recipe, given=Given(prompts=questions))
    assert report.reward is None and report.model is None and report.ok
    assert len(report.left_out) == 2 and "no node of workflow 'sft' judges" in report.left_out[0]


def test_a_reward_that_cannot_be_imported_is_refused(audited):
    with pytest.raises(ConfigError, match=r"broken_rewards has no 'rihgt'. Did you mean 'right'"):
        audited("rihgt")


def test_options_are_checked():
    for options, name in (
        ({"prompts": 0}, "--prompts=0"),
        ({"samples": -1}, "--samples=-1"),
        ({"budget_s": 0}, "--sec"),
    ):
        with pytest.raises(UserError, match=name):
            replace(AuditOptions(), **options)


def test_the_same_audit_twice_says_the_same(audited):
    first, second = (audited("right", "reward.workers=0") for _ in range(2))
    assert first.reward.rows == second.reward.rows and first.findings == second.findings


def parts_of(recipe_of, questions, **parts):
    recipe = recipe_of(("reward.workers=0",), reward={"parts": parts})
    report = audit(recipe, given=Given(prompts=questions), options=AuditOptions(model=False))
    return report, [finding for finding in report.findings if finding.code == "reward.part"]


def test_a_part_that_returns_nothing_is_found_first(recipe_of, questions, monkeypatch):
    monkeypatch.syspath_prepend(str(BROKEN_REWARDS))
    closes = {"use": "broken_rewards:no_return"}
    never = {"use": "broken_rewards:never_pays"}
    report, (finding,) = parts_of(recipe_of, questions, never=never, closes=closes)
    assert report.findings[0] is finding and finding.severity == "problem", report.findings
    judged = sum(row.scored for row in report.reward.rows)
    assert f"Part closes applied to none of {judged} answers" in finding.message
    assert "a forgotten return?" in finding.message and "reward.parts.closes" in finding.remedy
    report, (finding,) = parts_of(recipe_of, questions, right={"use": "exact_match"}, closes={**closes, "weight": 0})
    assert finding.severity == "warning" and report.ok, "it counts nothing"


def test_a_part_that_applies_to_some_is_fine(recipe_of, questions, monkeypatch):
    monkeypatch.syspath_prepend(str(BROKEN_REWARDS))
    some = {"use": "broken_rewards:only_of_first"}
    _, found = parts_of(recipe_of, questions, right={"use": "exact_match"}, some=some)
    assert found == []
