"""What a user can get wrong: one sentence with the nearest name or the remedy, and exit 2, before anything starts."""

import json
import os
import sys
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
        (["train", "quickstart", "evaluate.sets={3: {prompts: {type: builtin}}}"], "the key 3 in evaluate.sets"),
        (["train", "quickstart", "reward.with={ignore_case: {1: 2}}"], "the key 1 in reward.with.ignore_case"),
        (["train", "quickstart", f"seed={'9' * 5000}"], "4300 digits"),
        (["train", "quickstart", "sampling.n=\0"], "special characters"),
        (["train", "quickstart", f"name={'a' * 300}"], "name=aaa"),
        (["train", "quickstart", "runs_dir=/dev/null"], "is no folder"),
        (["train", "quickstart", f"model.path={'a' * 5000}"], "the model folder"),
        (["train", "quickstart", f"evaluate.sets={{{'a' * 300}: {{prompts: {{type: builtin}}}}}}"], "at most 64"),
        (["train", "quickstart", "reward={parts: {a/b: {use: exact_match}}}"], "reward.parts has a part called 'a/b'"),
        (["train", "quickstart", "reward={parts: {'': {use: exact_match}}}"], "reward.parts has a part called ''"),
        (["train", "quickstart", "reward={parts: {a: {use: exact_match}}}", "evaluate.score=b"], "evaluate.score='b'"),
        (["train", "quickstart", "reward.use=environment"], "the recipe has none"),
        (["check", "quickstart", "reward.use=environment"], "the recipe has none"),
        (["check", "quickstart", "reward={parts: {e: {use: environment}}}"], "reward.parts.e.use=environment is"),
        (["train", "quickstart", "sampling.temperature=1e-300"], "0.001 or more"),
        (["train", "quickstart", "sampling.max_tokens=600"], "Set sampling.max_tokens=505 or less"),
        (["train", "quickstart", "evaluate.max_tokens=1000"], "Set evaluate.max_tokens=505 or less"),
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


def test_names_that_no_file_can_have_and_rows_beyond_all_rows(refused):
    # pitfall 35
    assert "is no name of a file" in refused("train", "quickstart", *jsonl("a" * 5000))
    good = write("good.jsonl", *[json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(5)])
    assert "prompts.slice" in refused("train", "quickstart", *jsonl(good), f"prompts.slice=:{'9' * 30}")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def f():\n    raise RuntimeError('boom')", "RuntimeError: boom"),
        ("def f():\n    yield '1+1='\n    raise SystemExit(0)", "SystemExit: 0"),
        ("def f(rows):\n    return rows", "needs rows"),
    ],
)
def test_prompts_of_a_function_that_fails(refused, body, says):
    # pitfall 35
    write("failing_prompts.py", body)
    sys.modules.pop("failing_prompts", None)
    said = refused("train", "quickstart", "prompts.type=python", "prompts.use=failing_prompts:f", *FAKE)
    assert "prompts.use=failing_prompts:f" in said
    assert says in said


@pytest.mark.parametrize(
    ("text", "says"),
    [("steps: \0 3", "special characters"), (f"seed: {'9' * 5000}", "4300 digits"), (f"a: {'[' * 5000}", "deep")],
)
def test_recipes_that_yaml_cannot_read(refused, text, says):
    # pitfall 35
    said = refused("train", write("own.yaml", text))
    assert "own.yaml" in said
    assert says in said


def test_a_recipe_of_a_function_that_fails(refused):
    # pitfall 35
    write("failing_recipe.py", "def f():\n    return {}['steps']")
    said = refused("train", "failing_recipe:f")
    assert "KeyError" in said
    assert "failing_recipe.py, line 2" in said


ENVIRONMENT = """
class Good:
    def __init__(self, prompt, limit=3): pass
    def start(self): return None
    def reply(self, text): return None

class NoPrompt:
    def start(self): return None
    def reply(self, text): return None

class Start(Good):
    def start(self, first): return None

class Reply(Good):
    def reply(self): return None

class Score(Good):
    def score(self, text): return 1.0

class Needs(Good):
    def __init__(self, prompt, secret): pass

def nothing(): return Good(None)
"""


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["environment.use=own_env:NoPrompt"], "takes no prompt"),
        (["environment.use=own_env:nothing"], "takes no prompt"),
        (["environment.use=own_env:Start"], "its method start cannot be called as start()"),
        (["environment.use=own_env:Reply"], "its method reply cannot be called as reply(text)"),
        (["environment.use=own_env:Score"], "its method score cannot be called as score()"),
        (["environment.use=own_env:Needs"], "Set environment.with.secret=VALUE"),
        (["environment.use=own_env:Good", "environment.with.limitt=3"], "Did you mean 'limit'?"),
        (["environment.use=own_env:Good", "environment.with.prompt=3"], "environment.with.prompt is set"),
        (["environment.use=own_env:Good", "reward.use=environment"], "has no method score"),
        (["environment.use=own_env:Good", "environment.max_total_tokens=9999"], "environment.max_total_tokens=512 or"),
    ],
)
def test_environments_that_cannot_be_played(refused, keys, says):
    # pitfalls 25, 35
    write("own_env.py", ENVIRONMENT)
    sys.modules.pop("own_env", None)
    for command in ("train", "check"):
        assert says in refused(command, "quickstart", "steps=1", "warmup=null", *keys)


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


def test_completions_that_do_not_fit_behind_long_prompts(refused):
    write("long.jsonl", json.dumps({"prompt": "1" * 400, "answer": "1"}), json.dumps({"prompt": "2", "answer": "2"}))
    rows = ["prompts={type: jsonl, path: long.jsonl, held_out: 0.5}", "sampling.max_tokens=200", "warmup=null"]
    said = refused("train", "quickstart", *rows)
    assert "prompts.max_prompt_tokens=312 with prompts.too_long=skip" in said
    assert "or sampling.max_tokens=111 or less" in said
    a_set = "evaluate.sets={own: {prompts: {type: jsonl, path: long.jsonl, held_out: 0}}}"
    assert "Set sampling.max_tokens=111 or less." in refused("train", "quickstart", "sampling.max_tokens=200", a_set)
