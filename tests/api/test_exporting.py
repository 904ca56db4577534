"""What a run leaves for other tools: whole or not there, from the step that was asked for, never written over."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.api import start
from stretto.api.exporting import choose_checkpoint, export_csv, export_model, export_samples
from stretto.cli.main import main
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError, StoreError
from stretto.store import GroupBody, RunSpec, RunStore, RunView
from stretto.testing import make_group

TINY = {
    "steps": 4,
    "prompts": {"type": "builtin", "name": "addition", "max": 4},
    "warmup": {"max_steps": 2, "groups_per_step": 4, "evaluate": {"every": 1, "limit": 2}},
    "sampling": {"n": 2, "max_tokens": 3},
    "schedule": {"groups_per_step": 2},
    "backend": {"type": "torch", "threads": 1},
    "reward": {"use": "exact_match", "workers": 0},
    "evaluate": {"every": 2, "limit": 2},
    "save": {"every": 2, "keep_last": 3},
}


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    return start(recipe_from_mapping({**TINY, "runs_dir": str(tmp_path_factory.mktemp("runs")), "name": "tiny"}))


def weights(folder: Path) -> dict:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def test_the_newest_policy_is_what_the_run_exports_itself(view, tmp_path):
    assert export_model(view, tmp_path / "out").path.name == "step-4"
    own = view.path / "model"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in own.iterdir())
    for file in own.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_policy_of_a_named_step_is_that_steps(view, tmp_path):
    from safetensors.numpy import load_file
    from transformers import AutoModelForCausalLM

    for step, name in (("2", "step-2"), ("warmup-step-2", "warmup-step-2")):
        export_model(view, tmp_path / name, step)
        stored = load_file(view.path / "checkpoints" / name / "policy.safetensors")
        found = weights(tmp_path / name)
        assert found.keys() == stored.keys()
        assert all((found[key] == stored[key]).all() for key in stored)
        assert AutoModelForCausalLM.from_pretrained(tmp_path / name).num_parameters() > 1e6


def test_which_checkpoints_there_are_is_said(view):
    with pytest.raises(ConfigError, match=r"no checkpoint 'step-3'. Saved: warmup-step-2, step-2, step-4"):
        choose_checkpoint(view, "3")
    with pytest.raises(ConfigError, match="no checkpoint 'last'"):
        choose_checkpoint(view, "last")
    best = choose_checkpoint(view, "best")
    accuracies = {e.step: e.body.accuracy for e in view.evaluations()}
    assert accuracies[best.header.steps_done] == max(accuracies[2], accuracies[4])


def test_without_evaluations_there_is_no_best(tmp_path):
    never = {**TINY, "warmup": None, "evaluate": {"at_start": False, "at_end": False}}
    run = start(recipe_from_mapping({**never, "runs_dir": str(tmp_path), "name": "x"}))
    with pytest.raises(ConfigError, match=r"none is the best. Saved: step-2, step-4. Name one by --step"):
        choose_checkpoint(run, "best")


def test_a_damaged_checkpoint_is_not_exported(view, tmp_path):
    import shutil

    shutil.copytree(view.path, tmp_path / "damaged")
    file = tmp_path / "damaged" / "checkpoints" / "step-2" / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(StoreError, match=r"policy.safetensors is damaged"):
        export_model(RunView(tmp_path / "damaged"), tmp_path / "out", "2")
    assert not (tmp_path / "out").exists()


def test_tables(view, tmp_path):
    assert export_csv(view, tmp_path / "csv") == (6, len(view.evaluations()) + len(view.evaluations("warmup")))
    with open(tmp_path / "csv" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["phase"], row["steps_done"]) for row in rows[-4:]] == [("main", f"{i}") for i in range(1, 5)]
    assert [float(row["reward/mean"]) for row in rows[-4:]] == [v for _, v in view.history("reward/mean")]
    with open(tmp_path / "csv" / "evaluations.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "main"]
    assert [int(row["steps_done"]) for row in rows] == [e.step for e in view.evaluations()]
    assert [float(row["accuracy"]) for row in rows] == [e.body.accuracy for e in view.evaluations()]


def test_samples_are_for_people(view, tmp_path):
    count = export_samples(view, tmp_path / "samples")
    rows = [json.loads(line) for line in (tmp_path / "samples" / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == count == 2 * 4 + 4 * 2 * 2
    last = rows[-1]
    trajectory = view.groups()[-1].group.trajectories[-1]
    assert (last["phase"], last["completion"], last["reward"]) == ("main", trajectory.text, trajectory.reward)
    assert last["prompt"].endswith("=")
    assert "answer" in last["data"]
    assert (rows[0]["steps_done"], last["steps_done"]) == (1, 4)
    assert "messages" not in last


def test_samples_of_an_environment_have_the_whole_conversation(tmp_path):
    turns = [("assistant", "L"), ("user", "Too low."), ("assistant", "M")]
    info: dict = {"turns": [{"role": role, "content": said} for role, said in turns]}
    group = make_group(rewards=(0.5,))
    first = replace(group.trajectories[0], text="M", info=info)
    again = replace(first, key=replace(first.key, part=1))  # a template rewrote the past: one attempt of two rows
    with RunStore.create(tmp_path, RunSpec(hint="x", config={}, seed=0, steps=1)) as store:
        store.group(GroupBody(draw=0, uid="p0", n=2), replace(group, trajectories=(first, again)), phase="main", step=0)
        store.end("done")
    assert export_samples(RunView(store.path), tmp_path / "samples") == 1
    row = json.loads((tmp_path / "samples" / "samples.jsonl").read_text())
    assert (row["completion"], row["messages"]) == ("M", info["turns"])


def test_the_command(view, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = ["--dir", str(view.path.parent)]
    assert main(["runs", "export", "tiny", "--what", "csv", *run]) == 0
    assert capsys.readouterr().out.startswith("wrote tiny-csv: metrics.csv (6 steps)")
    assert main(["runs", "export", "tiny", "--what", "csv", *run]) == 2
    assert "tiny-csv exists already, and nothing is written over" in capsys.readouterr().err
    assert main(["runs", "export", "tiny", "--step", "2", "--to", "deep/er", *run]) == 0
    assert capsys.readouterr().out == "wrote deep/er, the policy of step-2\n"
    assert main(["runs", "export", "tiny", "--what", "samples", "--step", "2", *run]) == 2
    assert "Leave --step out" in capsys.readouterr().err
    assert main(["runs", "export", "tinny", *run]) == 2
    assert "Did you mean 'tiny'" in capsys.readouterr().err


def test_a_run_of_fakes_has_no_weights(tmp_path):
    fake = {**TINY, "engine": {"type": "fake"}, "backend": {"type": "fake"}, "warmup": None}
    run = start(recipe_from_mapping({**fake, "runs_dir": str(tmp_path), "name": "x"}))
    with pytest.raises(ConfigError, match=r"backend.type=fake holds no Model"):
        export_model(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
