"""``stretto graph`` of every recipe there is and of every form that one may have, with its warm-up."""

import pytest

from stretto.cli.main import main
from stretto.cli.new import make_scaffold
from stretto.recipes import packaged


@pytest.mark.parametrize("name", packaged())
def test_every_packaged_recipe(name, capsys):
    assert main(["graph", name]) == 0
    assert "per step, as a batch" in capsys.readouterr().out


def test_every_form_of_a_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    make_scaffold(tmp_path / "task")
    (tmp_path / "recipes_of_mine.py").write_text(
        "def mine():\n    return {'steps': 3, 'algorithm': {'type': 'ppo'}, 'warmup': {'max_steps': 2}}\n"
    )
    for recipe, main_phase in (("quickstart", "grpo"), ("task/recipe.yaml", "grpo"), ("recipes_of_mine:mine", "ppo")):
        assert main(["graph", recipe]) == 0
        assert capsys.readouterr().out.startswith(f"workflow {main_phase}")
        assert main(["graph", recipe, "--phase", "warmup"]) == 0
        assert capsys.readouterr().out.startswith("workflow sft")


def test_an_algorithm_by_its_name_has_what_it_implies(capsys):
    assert main(["graph", "dapo"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("workflow dapo")
    assert "charge_overlong" in out
    assert "loss=clip(clip_high=0.28)" in out


def test_a_phase_that_is_not_there(capsys):
    assert main(["graph", "quickstart", "warmup=null", "--phase", "warmup"]) == 2
    assert "warmup is null. Leave --phase out" in capsys.readouterr().err
    assert main(["graph", "ppo", "--phase", "warmup"]) == 2
    assert "ppo is a workflow, which has no phases" in capsys.readouterr().err


def test_a_workflow_in_place_of_a_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["graph", "grpo", "-o", "mine.yaml"]) == 0
    for command in ("train", "check"):
        assert main([command, "mine.yaml"]) == 2
        said = capsys.readouterr().err
        assert "mine.yaml is a workflow (it has nodes), and a recipe belongs here" in said
        assert "`stretto train quickstart workflow=mine.yaml`" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--steps", "10"], "--steps is no option: keys of a recipe are written without dashes. Write steps=10."),
        (["--steps=10"], "Write steps=10."),
        (["--runs-dir", "x"], "Write runs_dir=x."),
        (["--lr", "3e-5"], "Write backend.lr=3e-5 or critic.lr=3e-5"),
        (["--backend.lr"], "Write backend.lr=VALUE."),
        (["lr=3e-5"], "lr is not a key of recipes. Did you mean backend.lr or critic.lr"),
        (["--nonsense"], "No such option"),
    ],
)
def test_keys_typed_by_habit(tmp_path, monkeypatch, capsys, given, said):
    monkeypatch.chdir(tmp_path)
    for command in ("train", "check"):
        assert main([command, "quickstart", *given]) == 2
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
