"""``evaluate``: which keys it takes, and what it needs of a run that was made in Python."""

import json
from pathlib import Path

import pytest

import stretto
from stretto.api import evaluate
from stretto.cli.main import main
from stretto.errors import ConfigError, DataError
from stretto.workflows.nodes import advantages, collect, report, rollout, score, update_policy

FAKE = {
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "schedule": {"groups_per_step": 2},
    "sampling": {"n": 2, "max_tokens": 3},
    "steps": 1,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> str:
    prompts = {"type": "builtin", "name": "addition", "max": 4}
    return stretto.train("grpo", prompts=prompts, reward={"use": "exact_match", "workers": 0}, name="mine", **FAKE).name


def test_keys_that_an_evaluation_reads_are_taken(run):
    assert evaluate(run)["held_out"].n == 5
    assert evaluate(run, ["evaluate.limit=2", "sampling.max_tokens=2", "sampling.deadline_s=60"])["held_out"].n == 2
    assert evaluate(run, ["prompts.max=9", "reward.on_error=drop", "engine.type=fake"])["held_out"].n == 20


def test_all_of_a_file_is_scored_where_all_is_held_out(run, capsys):
    assert evaluate(run, ["prompts.held_out=1"])["held_out"].n == 25
    assert main(["eval", run, "prompts.max=9"]) == 0
    assert "prompts.held_out=1 scores all there are" in capsys.readouterr().out
    assert main(["eval", run, "prompts.max=9", "prompts.held_out=1"]) == 0
    assert "scores all" not in capsys.readouterr().out
    with pytest.raises(DataError, match=r"held_out=1 leaves no prompt to train on\. It is for `stretto eval`"):
        stretto.train("grpo", prompts={"type": "builtin", "held_out": 1.0}, reward={"use": "exact_match"}, **FAKE)


@pytest.mark.parametrize("key", ["backend.lr=3", "steps=9", "evaluate.every=5", "sampling.n=4", "seed=1"])
def test_other_keys_are_refused_by_name(run, key, capsys):
    # pitfall 25
    assert main(["eval", run, "evaluate.limit=2", key]) == 2
    assert f"an evaluation does not read {key.partition('=')[0]}. Leave that out" in capsys.readouterr().err


def test_a_model_takes_the_same_keys_and_the_seed():
    with pytest.raises(ConfigError, match=r"does not read backend\.lr, save\.every"):
        evaluate("builtin:tiny-llama-char", ["backend.lr=3", "seed=1", "save.every=5"])
    assert main(["eval", "builtin:tiny-llama-char", "evaluate.limt=3"]) == 2


def test_a_run_made_in_python_is_evaluated_with_what_can_be_imported(capsys):
    def own(prompt: stretto.Prompt, trajectory: stretto.Trajectory) -> float:
        return 0.0

    stretto.train("grpo", prompts=["1+1=", "2+2=", "3+3="], reward=own, name="own", **FAKE)
    assert main(["eval", "own"]) == 2
    said = capsys.readouterr().err
    assert "made with Python objects (reward, prompts), and can only be evaluated with" in said
    assert "`stretto eval own reward.use=MODULE:FUNCTION prompts.type=jsonl prompts.path=FILE`" in said
    lines = [json.dumps({"prompt": f"{i}+1=", "answer": f"{i + 1}"}) for i in range(9)]
    Path("sums.jsonl").write_text("\n".join(lines) + "\n")
    keys = ["prompts.type=jsonl", "prompts.path=sums.jsonl", "prompts.held_out=0.5"]
    assert evaluate("own", ["reward.use=exact_match", *keys])["held_out"].n in (4, 5)


def test_a_run_of_a_workflow_made_in_python_is_evaluated_by_its_model(capsys):
    @stretto.workflow
    def flow(prompt: stretto.Prompt) -> stretto.StepReport:
        batch = collect(score(rollout(prompt, n=2)))
        return report(update_policy(batch, credit=advantages(batch)))

    stretto.train(flow, prompts=[{"prompt": "1+1=", "answer": "2"}], reward="exact_match", name="flow", **FAKE)
    assert main(["eval", "flow"]) == 2
    assert "`stretto eval runs/flow/model prompts.type=jsonl prompts.path=FILE`" in capsys.readouterr().err
