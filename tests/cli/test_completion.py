"""Shell completion as shells ask for it: by environment variables, and bash's own script in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.cli.main import main

COMMAND = [sys.executable, "-m", "stretto"]


def offered(folder: Path, line: str) -> list[str]:
    """What is offered for the last word of ``line``."""
    asked = {"_STRETTO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": f"{len(line.split(' ')) - 1}"}
    done = subprocess.run(COMMAND, cwd=folder, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "quickstart-2", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("unread")
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "quiz.yaml").write_text("steps: 3")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stretto tr", {"train"}),
        ("stretto train q", {"quickstart", "quiz.yaml"}),
        ("stretto train quickstart ste", {"steps="}),
        ("stretto train quickstart steps=3 critic.", {"critic.lr="}),
        ("stretto train quickstart warmup", {"warmup=", "warmup.lr="}),
        ("stretto train quickstart steps=", set()),
        ("stretto resume q", {"quickstart", "quickstart-2"}),
        ("stretto runs ex", {"export"}),
        ("stretto runs export quickstart-", {"quickstart-2"}),
        ("stretto runs compare other q", {"quickstart", "quickstart-2"}),
    ],
)
def test_what_is_offered(folder, line, words):
    found = offered(folder, line)
    assert len(found) == len(set(found))
    assert words <= set(found) and (words or not found)
    assert all(word.startswith(line.rpartition(" ")[2]) for word in found)


def test_sections_are_not_offered_as_keys(folder):
    found = offered(folder, "stretto train quickstart ")
    assert "backend.lr=" in found and "backend=" not in found and "warmup.evaluate=" not in found


def test_answering_loads_no_torch(folder):
    code = (
        "import sys\nfrom stretto.cli.main import main\nmain()\n"
        "assert not {'torch', 'transformers', 'rich', 'matplotlib'} & set(sys.modules), 'heavy'\n"
    )
    asked = {"_STRETTO_COMPLETE": "complete_bash", "COMP_WORDS": "stretto train quickstart s", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, check=False)
    assert (done.returncode, b"steps=" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell, capsys):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "_STRETTO_COMPLETE=complete_bash" in out and "COMP_CWORD=" in out
    assert main(["completion", "csh"]) == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_it(folder):
    stretto = folder / "stretto"
    stretto.write_text(f'#!/bin/sh\nexec {sys.executable} -m stretto "$@"\n')
    stretto.chmod(0o755)
    script = (
        'eval "$(./stretto completion bash)"; complete -p stretto\n'
        "COMP_WORDS=(stretto resume quick); COMP_CWORD=2; _stretto_completion ./stretto\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-2:] == ["quickstart", "quickstart-2"], done
    assert "-F _stretto_completion stretto" in done.stdout
