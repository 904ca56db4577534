"""``stretto new``: what it makes runs as it is, and it never writes over anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.api import prompts_of
from stretto.cli.main import main
from stretto.cli.new import make_scaffold
from stretto.config.load import load_recipe
from stretto.data.tokens import builtin_tokenizer
from stretto.errors import ConfigError, DataError
from stretto.recipes import FOLDER
from stretto.store import RunView

FILES = [".gitignore", "README.md", "data.jsonl", "recipe.yaml", "reward.py", "test_reward.py"]


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def stretto(folder: Path, *arguments: str) -> str:
    return run(folder, "-m", "stretto", *arguments)


def a_model(folder: Path, template: bool) -> Path:
    """A folder that passes for a model, with or without a chat template."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    builtin_tokenizer().save(folder)
    if template:
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


def test_it_runs_as_it_is_made(tmp_path):
    assert stretto(tmp_path, "new", "my-task").startswith(f"made my-task: {', '.join(FILES)}\n")
    folder = tmp_path / "my-task"
    assert sorted(p.name for p in folder.iterdir()) == FILES
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my-task"]
    assert "{{" not in "".join(p.read_text() for p in folder.iterdir())
    assert "passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "8 to train on" in stretto(folder, "check", "recipe.yaml")
    assert "rollout" in stretto(folder, "graph", "recipe.yaml")
    stretto(folder, "train", "recipe.yaml", "steps=2", "warmup.max_steps=2")
    assert (RunView(folder / "runs" / "recipe").steps, RunView(folder / "runs" / "recipe").status) == (2, "done")
    assert "on 2 held-out prompts" in stretto(folder, "eval", "recipe")


def test_its_test_scores_what_a_run_would(tmp_path):
    folder = make_scaffold(tmp_path / "my-task").folder
    recipe = (folder / "recipe.yaml").read_text().replace("held_out: 0.2}", "answer: solution, prompt: q}")
    (folder / "recipe.yaml").write_text(recipe)
    rows = [{"q": letter, "solution": number, "hint": "h"} for number, letter in enumerate("abc")]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run(tmp_path, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "my-task")
    assert "7 passed, 1 skipped" in done
    assert "no answer is long enough" in done
    prompts = prompts_of(str(folder / "recipe.yaml"), [f"prompts.path={folder / 'data.jsonl'}"])
    assert [(p.text, p.data) for p in prompts][1] == ("b", {"answer": 1, "solution": 1, "hint": "h"})


@pytest.mark.slow
def test_the_reward_rises_by_the_end(tmp_path):
    folder = make_scaffold(tmp_path / "my-task").folder
    stretto(folder, "train", "recipe.yaml")
    view = RunView(folder / "runs" / "recipe")
    rewards = [value for _, value in view.history("reward/mean")]
    assert len(rewards) == 80
    assert sum(rewards[:5]) / 5 < 0.65
    assert sum(rewards[-5:]) / 5 > 0.85
    assert view.evaluations()[-1].body.accuracy > view.evaluations()[0].body.accuracy


def test_the_readme_names_commands_that_there_are(tmp_path, capsys):
    readme = (make_scaffold(tmp_path / "my-task").folder / "README.md").read_text()
    lines = [line.split()[1] for line in readme.splitlines() if line.startswith("stretto ")]
    assert {"train", "runs", "eval"} <= set(lines)
    for command in lines:
        assert main([command, "--help"]) == 0
    assert "about half a minute" in readme


@pytest.mark.parametrize("template", [True, False])
def test_another_model_is_written_into_the_recipe(tmp_path, monkeypatch, template):
    monkeypatch.chdir(tmp_path)
    a_model(tmp_path / "a model", template)
    made = make_scaffold(Path("task"), "a model")
    assert made.chat == template
    row = json.loads((made.folder / "data.jsonl").read_text().splitlines()[0])
    assert isinstance(row["prompt"], list) == template
    assert len((made.folder / "data.jsonl").read_text().splitlines()) == 10
    recipe = load_recipe(str(made.folder / "recipe.yaml"), [], packaged=FOLDER).recipe
    assert recipe.model.path == str(tmp_path / "a model")
    assert "half a minute" not in (made.folder / "README.md").read_text()
    if template:
        run(made.folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize("name", [".", "..", "a b", "-x", ".hidden", "a/..", "", "ü"])
def test_names_that_no_folder_should_have(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be the name of a task"):
        make_scaffold(Path(name))


def test_nothing_is_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    Path("file").write_text("mine")
    Path("link").symlink_to("full")
    for name in ("full", "file", "link"):
        assert main(["new", name]) == 2
        assert f"{name} exists already, and nothing is written over" in capsys.readouterr().err
    assert [p.name for p in Path("full").iterdir()] == ["mine.txt"]
    assert main(["new", "missing/task"]) == 2
    assert "missing is no folder that a task could be made in" in capsys.readouterr().err
    Path("empty").mkdir()
    assert main(["new", "empty"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "full", "link"]


def test_a_model_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="Did you mean 'builtin:tiny-llama-char'"):
        make_scaffold(Path("task"), "builtin:tiny-lama-char")
    with pytest.raises(DataError, match="does not exist"):
        make_scaffold(Path("task"), "no-model")
    assert not Path("task").exists()


def test_a_name_that_is_too_long(tmp_path, monkeypatch, capsys):  # pitfall 35
    monkeypatch.chdir(tmp_path)
    assert main(["new", "a" * 300]) == 2
    assert "at most 100" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
