"""The command line from outside: messages and exit statuses."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

import stretto as stretto_package
from stretto.cli.main import exit_status, main
from stretto.errors import ConfigError, DataError, GraphError, Interrupted, ResumeError, RewardError, StoreError


def run(capsys, *arguments):
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_help_shows_every_command_with_an_example(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for command in ("new", "train", "check", "graph", "resume", "eval", "runs"):
        assert command in out
        status, text, _ = run(capsys, command, "--help")
        assert status == 0
        assert command == "runs" or f"Example: stretto {command} " in text
    for command in ("list", "show"):
        assert "Example: stretto runs" in run(capsys, "runs", command, "--help")[1]


def test_the_version_is_told(capsys):
    assert run(capsys, "--version")[:2] == (0, f"stretto {version('stretto')}\n")
    assert stretto_package.__version__ == version("stretto")


def test_help_of_train_lists_every_key(capsys):
    out = run(capsys, "train", "--help")[1]
    for key in ("backend.lr", "algorithm.clip_low (grpo)", "warmup.evaluate.*", "evaluate.every", "save.keep_best"):
        assert key in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean 'train'"),
        (["train"], "RECIPE"),
        (["train", "quickstart", "--steps=3"], "Write steps=3."),
        (["train", "quickstart", "--max_steps", "3"], "Write steps=3."),
        (["train", "quickstart", "--learning-rate=3e-5"], "Write backend.lr=3e-5."),
        (["train", "quickstart", "--nonsense=3"], "No such option"),
        (["train", "quikstart"], "Did you mean 'quickstart'"),
        (["check", "quickstart", "stesp=3"], "Did you mean 'steps'"),
        (["train", "quickstart", "evaluate.every=0"], "evaluate.every=0 cannot be used"),
        (["train", "quickstart", "save.every=-5"], "save.every=-5 cannot be used"),
        (["graph", "pppo"], "Did you mean 'ppo'"),
        (["graph", "ppo", "steps=3"], "ppo is a workflow"),
        (["graph", "quickstart", "--format", "png"], "png"),
        (["resume", "nothing"], "there is no run 'nothing' in runs"),
        (["runs", "show"], "there is no run in runs"),
        (["runs", "shwo"], "Did you mean 'show'"),
    ],
)
def test_what_the_user_gets_wrong_exits_2_with_a_sentence(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert said in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []  # nothing was started


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 2),
        (GraphError("x"), 2),
        (DataError("x"), 2),
        (ResumeError("x"), 2),
        (RewardError("x"), 3),
        (StoreError("x"), 3),
        (Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 3),
        (SystemExit(0), 0),
        (SystemExit(2), 2),
    ],
)
def test_each_kind_of_error_has_its_status(capsys, error, status):  # pitfall 34
    def command():
        raise error

    assert exit_status(command) == status
    assert "Traceback" not in capsys.readouterr().err


def test_what_failed_after_the_cause_stands_below_it(capsys):
    def fails():
        error = RewardError("the reward failed. Mend it.")
        error.add_note("the engine failed to close: OSError: no room")
        raise error

    assert exit_status(fails) == 3
    assert capsys.readouterr().err.splitlines() == [
        "error: the reward failed. Mend it.",
        "  the engine failed to close: OSError: no room",
    ]


def test_ctrl_c_while_the_summary_is_written_changes_no_status(capsys, tmp_path, monkeypatch):  # pitfall 34
    from stretto.cli import summary

    def interrupted(view, *, unicode):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(summary, "end_of_run", interrupted)
    keys = ["engine={type: fake}", "backend={type: fake}", "reward.workers=0", "warmup=null", "steps=1"]
    assert main(["train", "quickstart", "evaluate.limit=2", *keys]) == 0


def test_the_traceback_comes_with_debug_only(capsys):
    for arguments in (["train", "quikstart", "--debug"], ["--debug", "train", "quikstart"]):
        status, _, err = run(capsys, *arguments)
        assert status == 2
        assert "Traceback (most recent call last)" in err
        assert err.rstrip().splitlines()[-1].startswith("error: no recipe is called 'quikstart'")


def test_a_graph_is_drawn_in_every_form(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, text, _ = run(capsys, "graph", "ppo")
    assert status == 0
    assert any("ref" in line and "value" in line and "[" in line for line in text.splitlines())  # side by side
    assert run(capsys, "graph", "quickstart")[1].startswith("workflow grpo")
    assert "ref" in run(capsys, "graph", "quickstart", "algorithm.kl_coef=0.5")[1]
    assert json.loads(run(capsys, "graph", "ppo", "--format", "json")[1])["workflow"] == "ppo"
    status, said, _ = run(capsys, "graph", "ppo", "--format", "svg", "-o", "ppo.svg")
    assert (status, said) == (0, "wrote ppo.svg\n")
    assert (tmp_path / "ppo.svg").read_text().startswith("<svg")
    for suffix, begins in (("svg", "<svg"), ("json", "{"), ("yaml", "workflow:"), ("txt", "workflow ppo")):
        assert run(capsys, "graph", "ppo", "-o", f"by-name.{suffix}")[0] == 0
        assert (tmp_path / f"by-name.{suffix}").read_text().startswith(begins)
    status, _, err = run(capsys, "graph", "ppo", "-o", "ppo.png")
    assert (status, "ends in none of .svg, .json, .yaml, .yml, .txt. Add --format." in err) == (2, True)
    # The written form can be drawn again, and a workflow of one's own is found in the working folder.
    assert run(capsys, "graph", "ppo", "-f", "yaml", "-o", "mine.yaml")[0] == 0
    assert run(capsys, "graph", "mine.yaml")[1] == text
    of_mine = "from stretto.workflows.builtin import actor_critic, policy_gradient as flow\n"
    (tmp_path / "flows_of_mine.py").write_text(of_mine)
    monkeypatch.syspath_prepend(tmp_path)
    drawn = run(capsys, "graph", "flows_of_mine:actor_critic")[1]
    assert drawn == text.replace("workflow ppo", "workflow actor_critic")
    status, _, err = run(capsys, "graph", "flows_of_mine:flw")
    assert (status, "Did you mean 'flow'" in err) == (2, True)
    status, _, err = run(capsys, "graph", "ppo", "-o", "missing/ppo.txt")
    assert (status, "missing/ppo.txt cannot be written" in err) == (2, True)


@pytest.mark.parametrize("command", ["graph", "train", "check"])
def test_what_is_no_recipe_and_no_workflow_is_said(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_recipes.py").write_text(
        "from stretto import Group, Key, node\n"
        "@node\ndef longest(group: Group) -> Group:\n    return group\n"
        "def needy(size, *, depth):\n    return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, needs in (("longest", "it needs group."), ("needy", "it needs size, depth.")):
        status, _, err = run(capsys, command, f"no_recipes:{name}")
        assert status == 2
        assert f"the recipe 'no_recipes:{name}' cannot be called: {needs}" in err
        assert "a workflow is a function under @workflow" in err
        assert "fault of stretto" not in err


def test_runs_are_listed_and_shown(capsys, monkeypatch, tmp_path, make_run):
    monkeypatch.chdir(tmp_path)
    assert "there is no run in runs" in run(capsys, "runs", "list")[1]
    make_run("one")
    make_run("two")
    status, out, _ = run(capsys, "runs", "list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["run", "one", "two"]
    shown = json.loads(run(capsys, "runs", "show", "--json")[1])
    assert {"run", "status", "steps", "seed", "wall_s", "cpu_s", "evals", "metrics"} <= shown.keys()
    assert (shown["run"], shown["steps"], shown["seed"]) == ("two", 200, 3)
    assert shown["evals"][0] == {"step": 0, "name": "held_out", "accuracy": 0.473, "n": 2000, "metrics": {}}
    assert run(capsys, "runs", "show", "one", "--dir", str(tmp_path / "runs"))[1].startswith("Run one: done, 200 steps")
    status, _, err = run(capsys, "runs", "show", "onne")
    assert (status, "Did you mean 'one'" in err) == (2, True)


def test_a_damaged_record_exits_3_naming_the_line(capsys, monkeypatch, tmp_path, make_run):
    monkeypatch.chdir(tmp_path)
    events = make_run("one") / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join([*lines[:4], "{nonsense\n", *lines[4:]]))
    status, _, err = run(capsys, "runs", "show", "one")
    assert status == 3
    assert "events.jsonl, line 5" in err


def stretto(*arguments, cwd):
    command = [sys.executable, "-m", "stretto", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_the_process_exits_with_the_status(tmp_path):
    unknown = stretto("train", "quikstart", cwd=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("error: no recipe is called 'quikstart'. Did you mean 'quickstart'?")
    assert stretto("runs", "list", cwd=tmp_path).returncode == 0
    assert stretto("nonsense", cwd=tmp_path).returncode == 2


def test_a_terminal_without_the_signs_still_gets_the_drawing(tmp_path):
    command = [sys.executable, "-m", "stretto", "graph", "ppo"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, b"")


def test_importing_the_command_line_is_light(tmp_path):
    code = (
        "import sys, stretto.cli.main as m\n"
        "status = m.main(['--help']) or m.main(['--version'])\n"
        "heavy = {'torch', 'ray', 'transformers', 'matplotlib', 'pydantic', 'numpy', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else status)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
