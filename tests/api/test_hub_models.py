"""A run from the hub keeps to the commit it began with."""

from pathlib import Path

import pytest

from stretto.api.runs import recipe_of
from stretto.api.training import resume, train
from stretto.data.tokens import builtin_tokenizer

FIRST, SECOND = "1" * 40, "2" * 40
PROMPTS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]
FAKES = {"engine": {"type": "fake"}, "backend": {"type": "fake"}}


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with two commits of a model, the main branch at the first, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "hub" / "models--org--model"
    for commit in (FIRST, SECOND):
        builtin_tokenizer().save(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(FIRST)
    return repo


def test_a_run_records_the_commit_and_resumes_with_it(hub_cache: Path, tmp_path: Path):
    run = train(
        "grpo",
        model="org/model",
        prompts=PROMPTS,
        reward="exact_match",
        runs_dir=str(tmp_path / "runs"),
        name="hub",
        steps=1,
        schedule={"groups_per_step": 1},
        **FAKES,
    )
    assert recipe_of(run.view).model.revision == FIRST
    (hub_cache / "refs" / "main").write_text(SECOND)
    again = resume("hub", prompts=PROMPTS, overrides=["steps=2"], runs_dir=tmp_path / "runs")
    assert again.view.steps == 2
    assert recipe_of(again.view).model.revision == FIRST
