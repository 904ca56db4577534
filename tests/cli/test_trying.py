"""``stretto try`` as a command: text, JSON, exit status."""

import json
import shutil
from pathlib import Path

import pytest

from stretto.cli.main import main

BROKEN = Path(__file__).parents[1] / "api" / "audit" / "broken_rewards.py"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copyfile(BROKEN, tmp_path / "my_rewards.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["try", "quickstart", "--no-model", "--prompts", "8", *arguments])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_a_good_recipe(folder, capsys):
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert "Reward exact_match of made answers to 8 prompts:" in out
    assert out.endswith("No problem found.\n")
    assert not (folder / "runs").exists(), "nothing is kept"


def test_a_broken_reward(folder, capsys):
    status, out, err = run(capsys, "reward.use=my_rewards:pays_for_anything")
    assert (status, err) == (2, "")
    assert "problem: Every answer gets 1, whatever it is" in out
    assert "-> Let the function of reward.use read trajectory.text" in out
    assert out.rstrip().splitlines()[-1].startswith("Found 1 problem")


def test_json(folder, capsys):
    status, out, _ = run(capsys, "--json", "reward.use=my_rewards:never_pays")
    told = json.loads(out)
    assert (status, told["ok"], told["recipe"]) == (2, False, "quickstart")
    assert {f["code"] for f in told["findings"]} == {"reward.gold", "reward.constant"}
    assert told["model"] is None and told["reward"]["rows"][0]["kind"] == "gold"


def test_what_cannot_be_tried_is_refused_as_by_check(folder, capsys):
    status, out, err = run(capsys, "reward.use=my_rewards:rihgt")
    assert (status, out) == (2, "") and "Did you mean 'right'?" in err
    status, _, err = run(capsys, "--prompts", "0")
    assert status == 2 and "--prompts=0 leaves nothing to look at" in err
