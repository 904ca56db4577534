"""``stretto runs``, and how runs are named in what is said."""

import json
import shlex
from pathlib import Path

import pytest

from stretto.api import start
from stretto.cli.main import main
from stretto.config.load import recipe_from_mapping
from stretto.store import find_run, word_for

FAKE = {
    "steps": 2,
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "prompts": {"type": "builtin", "name": "addition", "max": 4},
    "schedule": {"groups_per_step": 2},
    "reward": {"use": "exact_match", "workers": 0},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spoil_info(run: Path) -> None:
    (run / "run.json").write_text("{")


def spoil_events(run: Path) -> None:
    with open(run / "events.jsonl", "a") as file:
        file.write("garbage\n")


@pytest.mark.parametrize("spoil", [spoil_info, spoil_events])
def test_a_damaged_run_is_named_and_hides_no_other(spoil, capsys):
    for name in ("one", "spoilt", "two"):
        start(recipe_from_mapping({**FAKE, "name": name}))
    spoil(Path("runs/spoilt"))
    assert main(["runs", "list"]) == 3
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["run", "one", "two"]
    assert "damaged: runs/spoilt" in err
    assert main(["runs", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "two"
    assert main(["resume", "onee"]) == 2
    assert "Did you mean 'one'?" in capsys.readouterr().err
    assert main(["runs", "show", "spoilt"]) == 3


@pytest.mark.parametrize("runs_dir", ["runs", "other", "with a space/é"])
def test_a_run_is_named_so_that_the_next_command_finds_it(runs_dir, capsys):
    run = start(recipe_from_mapping({**FAKE, "runs_dir": runs_dir, "name": "mine"}))
    assert word_for(run.path) == word_for(run.path.absolute()) or runs_dir != "runs"
    (word,) = shlex.split(word_for(run.path))
    assert find_run(Path("runs"), word).samefile(run.path)
    assert main(["resume", word]) == 2
    assert f"`stretto resume {word_for(run.path)} steps=4`" in capsys.readouterr().err
    assert main(["eval", word]) == 0


def test_a_run_that_is_done_says_that_the_steps_asked_for_are_not_more(capsys):
    start(recipe_from_mapping({**FAKE, "name": "mine"}))
    for steps in (1, 2):
        assert main(["resume", "mine", f"steps={steps}"]) == 2
        said = (
            f"all of its 2 steps, and the {steps} asked for are not more. Give it more with `stretto resume mine steps"
        )
        assert said in capsys.readouterr().err
    assert main(["resume", "mine"]) == 2
    assert "all of its 2 steps. Give it more" in capsys.readouterr().err


def test_nothing_to_evaluate_on_is_said(capsys):
    start(recipe_from_mapping({**FAKE, "name": "mine", "prompts": {**FAKE["prompts"], "held_out": 0}}))
    assert main(["eval", "mine"]) == 2
    assert "Set prompts.held_out=0.2" in capsys.readouterr().err
