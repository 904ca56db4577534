"""Recipes with an environment: no made answers, episodes instead, and faults told where they are."""

import re
import sys
from pathlib import Path

import pytest

from stretto.api.audit.auditing import AuditOptions, audit
from stretto.api.audit.data import look_at_data
from stretto.cli.main import main
from stretto.config.load import load_recipe
from stretto.recipes import FOLDER
from stretto.runtime.build import Given, prepare

PAGE = Path(__file__).parents[3] / "docs" / "your-own-environment.md"

PLAYED = """
import time


class Good:
    def __init__(self, prompt, turns=2):
        self.heard, self.turns = [], turns

    def start(self):
        return "say: "

    def reply(self, text):
        self.heard.append(text)
        return None if len(self.heard) == self.turns else "more: "

    def score(self):
        return float(sum(map(ord, "".join(self.heard))) % 2)


class Raises(Good):
    def reply(self, text):
        raise KeyError("what it said")


class Late(Good):
    def reply(self, text):
        time.sleep(30)


class Unscored(Good):
    def score(self):
        return None


class Nothing(Good):
    def score(self):
        return 0.0
"""

SECRETS = [{"prompt": "guess", "answer": str(i)} for i in range(4)]


@pytest.fixture
def played(recipe_of, tmp_path, monkeypatch):
    """``played(class, *overrides, **options)``: the audit of an environment on fakes."""
    (tmp_path / "audited_env.py").write_text(PLAYED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "audited_env", raising=False)

    def run(name: str, *overrides: str, **options):
        given = ("reward.workers=0", "sampling.max_tokens=3")
        recipe = recipe_of(
            (f"environment.use=audited_env:{name}", "environment.on_length=reply", *given, *overrides),
            reward={"use": "environment"},
            environment={"use": "audited_env:Good", "max_total_tokens": 64, "workers": 0},
        )
        return audit(recipe, given=Given(prompts=SECRETS), options=AuditOptions(**options))

    return run


def found_of(report):
    return {finding.code: finding for finding in report.findings}


def test_the_recipe_of_the_page_is_sound(tmp_path, monkeypatch):
    code, recipe, rows = (text for _, text in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)[:3])
    for name, text in (("guessing.py", code), ("guess.yaml", recipe), ("secrets.jsonl", rows)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guessing", raising=False)
    loaded = load_recipe("guess.yaml", ["backend.threads=1"], packaged=FOLDER)
    report = audit(loaded.recipe, hint="guess", options=AuditOptions(budget_s=600))
    assert report.ok, report.findings
    assert {f.code for f in report.findings} <= {"data.few", "model.truncated"}
    assert report.reward is None and any("sampled episodes instead" in told for told in report.left_out)
    assert report.data.answer_tokens is None and report.data.num_duplicates == 0
    assert report.model.prompts == 2 and report.model.mean_reward > 0 and 1 < report.model.turns <= 4
    assert main(["try", "guess.yaml", "--no-model"]) == 0


def test_an_environment_is_played(played):
    report = played("Good")
    assert report.ok and report.reward is None, report.findings
    assert (report.model.prompts, report.model.samples, report.model.turns) == (4, 16, 2.0)
    assert 0 < report.model.mean_reward < 1 and report.model.share_truncated == 0
    assert report.model.sequences == 8, "attempts, not turns"


def test_budgets_end_episodes(played):
    report = played("Good", "environment.max_turns=2", "environment.with={turns: 5}")
    note = found_of(report)["model.truncated"]
    assert note.severity == "note" and "environment.max_turns=2" in note.message
    assert report.model.share_truncated == 1.0


def test_an_environment_that_fails(played):
    report = played("Raises", "environment.on_error=retry")
    finding = found_of(report)["model.environment"]
    assert finding.severity == "problem"
    assert "in 4 of the 4 groups" in finding.message and "KeyError" in finding.message
    assert 'raise KeyError("what it said")' in finding.message and "environment.use" in finding.remedy
    assert report.model is None and "reward.error" not in found_of(report)


def test_an_environment_that_is_late(played):
    report = played("Late", "environment.workers=1", "environment.timeout_s=0.2", prompts=1)
    finding = found_of(report)["model.environment"]
    assert "no answer within 0.2 s" in finding.message and "environment.timeout_s=0.2" in finding.remedy


def test_an_environment_without_a_score(played):
    finding = found_of(played("Unscored"))["model.error"]
    assert "its environment gave no score" in finding.message and "score() of environment.use" in finding.remedy


def test_an_environment_that_never_pays(played):
    flat = found_of(played("Nothing"))["model.flat"]
    assert flat.severity == "problem" and "of 4 prompts got 0" in flat.message
    assert flat.examples[0].answer.startswith("say:  | ") and " | more:  | " in flat.examples[0].answer


def test_prompts_are_the_same_only_with_the_same_data(recipe_of, tmp_path, monkeypatch):
    (tmp_path / "audited_env2.py").write_text(PLAYED)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = recipe_of((), environment={"use": "audited_env2:Good"}, reward={"use": "environment"})
    _, found = look_at_data(prepare(recipe, Given(prompts=[*SECRETS, SECRETS[1], {"prompt": "guess", "answer": ""}])))
    assert [(f.code, f.severity) for f in found] == [("data.duplicate", "note")]
