"""What a user can get wrong: one sentence with the nearest name or the remedy, and exit 2, before anything starts."""

import json
import os
from pathlib import Path

import pytest

from stretto.cli.main import main

FAKE = ["engine.type=fake", "backend.type=fake", "reward.workers=0", "steps=1", "warmup=null"]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run a command that must be refused; what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        assert not list(Path().glob("runs/*")), "something was started"
        err = capsys.readouterr().err
        assert "Traceback" not in err
        return err

    return run


def write(path: str, *lines: str) -> str:
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "quikstart"], "Did you mean 'quickstart'?"),
        (["train", "quickstart", "sampling.temprature=1"], "temperature"),
        (["train", "quickstart", "sampling.n=0"], "sampling.n"),
        (["train", "quickstart", "sampling.n=1"], "groups of one"),
        (["train", "quickstart", "engine.device=nonsense"], "engine.device='nonsense' cannot be used"),
        (["check", "quickstart", "backend.device=nonsense"], "backend.device='nonsense' cannot be used"),
        (["train", "quickstart", "evaluate.every=0"], "evaluate.every"),
        (["train", "quickstart", "save.every=-5"], "save.every"),
        (["train", "quickstart", "steps=0"], "steps"),
        (["train", "quickstart", "reward.use=exact_mach"], "Did you mean 'exact_match'?"),
        (["train", "quickstart", "reward.use=json:lods"], "loads"),
        (["train", "quickstart", "model.path=builtin:tiny-lama-char"], "Did you mean 'builtin:tiny-llama-char'?"),
        (["train", "quickstart", "workflow=grop"], "Did you mean 'grpo'?"),
        (["train", "quickstart", "prompts.max_prompt_tokens=3"], "max_prompt_tokens"),
        (["train", "quickstart", "schedule.max_staleness=2"], "max_staleness"),
        (["train", "quickstart", "sampling.top_p=0.9"], "ratios would be wrong"),
        (["train", "quickstart", "engine.threads=2"], "engine.threads"),
        (["train", "quickstart", "prompts.held_out=0"], "held_out"),
        (["graph", "gppo"], "Did you mean 'ppo'?"),
        (["resume", "nothing"], "no run"),
        (["runs", "shwo"], "show"),
    ],
)
def test_unknown_names_and_impossible_values(refused, arguments, says):
    # pitfalls 25, 35
    assert says in refused(*arguments)


def jsonl(path: str, **keys: object) -> list[str]:
    return ["prompts.type=jsonl", f"prompts.path={path}", *(f"prompts.{k}={v}" for k, v in keys.items()), *FAKE]


def test_data_files(refused):
    # pitfall 35
    said = refused("train", "quickstart", *jsonl("missing.jsonl"))
    assert "missing.jsonl" in said
    assert "empty.jsonl" in refused("train", "quickstart", *jsonl(write("empty.jsonl", "")))
    good = json.dumps({"prompt": "1+1=", "answer": "2"})
    broken = write("broken.jsonl", good, '{"prompt": "1+')
    assert "broken.jsonl" in (said := refused("train", "quickstart", *jsonl(broken)))
    assert "line 2" in said
    lacking = write("lacking.jsonl", good, json.dumps({"prompts": "1+1="}))
    said = refused("train", "quickstart", *jsonl(lacking))
    assert "line 2" in said
    long = write("long.jsonl", good, json.dumps({"prompt": "1" * 50, "answer": "2"}))
    said = refused("train", "quickstart", *jsonl(long, max_prompt_tokens=20))
    assert "line 2" in said
    assert "51" in said


def test_a_model_folder_without_weights(refused):
    # pitfall 35
    from transformers import LlamaConfig

    from stretto.data.tokens import builtin_tokenizer

    LlamaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1).save_pretrained("empty-model")
    builtin_tokenizer().save(Path("empty-model"))
    said = refused("train", "quickstart", "model.path=empty-model", "steps=1", "warmup=null")
    assert "empty-model" in said
    assert "safetensors" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{id: group, use: rolout, inputs: {prompt: prompt}}", "Did you mean 'rollout'?"),
        ("{id: group, use: rollout, inputs: {promt: prompt}}", "prompt"),
        ("{id: group, use: rollout, inputs: {prompt: prompt}, with: {m: 3}}", "m"),
    ],
)
def test_workflow_files(refused, text, says):
    write(
        "own.yaml",
        "workflow: own",
        "nodes:",
        f"  - {text}",
        "  - {id: batch, use: collect, inputs: {groups: group}}",
        "  - {id: learn, use: imitate, inputs: {batch: batch}}",
        "output: learn",
    )
    assert says in refused("train", "quickstart", "workflow=own.yaml")


def test_an_algorithm_key_that_the_workflow_does_not_read(refused):
    # pitfall 25
    write(
        "own.yaml",
        "workflow: own",
        "nodes:",
        "  - {id: group, use: demonstrate, inputs: {prompt: prompt}}",
        "  - {id: batch, use: collect, inputs: {groups: group}}",
        "  - {id: learn, use: imitate, inputs: {batch: batch}}",
        "output: learn",
    )
    said = refused("train", "quickstart", "workflow=own.yaml", "algorithm.clip_low=0.1")
    assert "algorithm.clip_low is set" in said


def test_a_named_run_that_exists(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "quickstart", *FAKE, "prompts.max=4", "evaluate.limit=2", "name=mine"]
    assert main(arguments) == 0
    before = sorted(os.listdir("runs/mine"))
    capsys.readouterr()
    assert main(arguments) == 2
    assert "stretto resume mine" in capsys.readouterr().err
    assert main(["resume", "mine"]) == 2
    assert "is done" in capsys.readouterr().err  # pitfall 6
    assert sorted(os.listdir("runs/mine")) == before
