"""The exported policy: a folder that can be trained on from, quietly, and that is whole or not there."""

from pathlib import Path

import pytest

from stretto.cli.main import main
from stretto.data.tokens import builtin_tokenizer
from stretto.runtime.exports import export_model
from stretto.testing import FakeBackend

KEYS = [
    "warmup=null",
    "steps=1",
    "prompts.max=4",
    "sampling.n=2",
    "sampling.max_tokens=3",
    "schedule.groups_per_step=2",
]
KEYS += ["backend.threads=1", "reward.workers=0", "evaluate.limit=2", "save.keep_best=null"]


def test_a_run_begins_with_the_weights_of_another(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart", *KEYS, "name=one"]) == 0
    assert main(["train", "quickstart", *KEYS, "name=two", "model.path=runs/one/model", "algorithm.type=ppo"]) == 0
    assert capfd.readouterr().err == ""
    assert sorted(p.name for p in Path("runs/two").iterdir() if p.name.startswith(".")) == []


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("before", [False, True])
def test_a_kill_in_an_export_leaves_no_part_of_it(tmp_path, before):
    class Dies(FakeBackend):
        def export(self, model: str, path: Path) -> None:
            super().export(model, path)
            raise Killed

    folder = tmp_path / "model"
    whole = {"policy.json", "tokenizer.json", "tokenizer_config.json"}
    if before:
        export_model(FakeBackend(), "policy", builtin_tokenizer(), folder)
    with pytest.raises(Killed):
        export_model(Dies(), "policy", builtin_tokenizer(), folder)
    assert folder.exists() == before
    if before:
        assert {p.name for p in folder.iterdir()} == whole
    export_model(FakeBackend(), "policy", builtin_tokenizer(), folder)
    assert {p.name for p in folder.iterdir()} == whole
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
