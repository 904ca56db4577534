"""Learning from preferences and from a teacher, from files to results: what a run records and hands on, that it goes on
to the same bits, and that one teaches the next."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from stretto.api import evaluate, resume, start
from stretto.api.exporting import export_model
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError, DataError, ResumeError
from stretto.store import RunView, compare_runs

COMMON = {
    "seed": 3,
    "schedule": {"groups_per_step": 8},
    "backend": {"lr": 1e-3, "threads": 1},
    "engine": {"slots": 16},
    "sampling": {"max_tokens": 3},
}


def recipe(name: str, **sections: object):
    return recipe_from_mapping({**COMMON, "name": name, **sections})


def run(name: str, **sections: object) -> RunView:
    return start(recipe(name, **sections))


def write_pairs(path: Path, rows: Sequence[dict]) -> dict[str, object]:
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"type": "jsonl", "path": str(path), "held_out": 0.25}


@pytest.fixture
def pairs(tmp_path, monkeypatch) -> dict[str, object]:
    """Prompts whose better answer is short: something that a tiny model learns in a few steps."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{i}=", "chosen": "a", "rejected": "a" * (3 + i % 3)} for i in range(40)]
    return write_pairs(tmp_path / "pairs.jsonl", rows)


def test_dpo_makes_chosen_answers_likelier(pairs):
    view = run("dpo", steps=6, prompts=pairs, algorithm={"type": "dpo"}, evaluate={"every": 3})
    accuracy = [e.body.accuracy for e in view.evaluations()]
    assert accuracy[0] == 0.5 and accuracy[-1] == 1.0
    margins = [value for _, value in view.history("pairs/margin")]
    assert margins[0] == 0 and margins[-1] > 0.5
    assert view.metrics["pairs/chosen"] > view.metrics["pairs/rejected"]
    last = view.evaluations()[-1].body
    assert last.metrics["held_out/pairs"] == 10
    assert {e.completion for e in last.examples} == {"a"}
    # Its policy is an ordinary model, and its evaluation can be of attempts.
    assert evaluate("dpo")["held_out"].metrics == dict(last.metrics)
    with pytest.raises(DataError, match="has no answer to match"):
        evaluate("dpo", ["evaluate.by=attempts"])


def test_a_reward_model_is_trained_handed_on_and_judges(pairs, tmp_path):
    view = run("judge", steps=6, prompts=pairs, algorithm={"type": "reward-model"}, evaluate={"every": 3})
    assert [e.body.accuracy for e in view.evaluations()][::2] == [0.5, 1.0]
    assert view.metrics["loss"] < 0.5
    folder = view.path / "model"
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = tokenizer(["7=a<eos>", "7=aaaa<eos>"], padding=True, return_tensors="pt")
    good, bad = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits[:, 0].tolist()
    assert good > bad
    export_model(view, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "again" / "config.json").read_bytes() == (folder / "config.json").read_bytes()

    reward = {"use": "reward_model", "with": {"path": str(folder)}}
    view = run("judged", steps=2, prompts={"max": 4}, reward=reward, evaluate={"at_start": False, "at_end": False})
    assert view.status == "done" and view.history("reward/reward_model")
    with pytest.raises(DataError, match=r"gives a number and writes no text: judge by it"):
        evaluate(str(folder))


@pytest.mark.parametrize("kind", ["dpo", "reward-model"])
def test_learning_from_pairs_goes_on_to_the_same_bits(pairs, kind):  # pitfall 8
    common = {"prompts": pairs, "algorithm": {"type": kind}, "evaluate": {"every": 2}}
    whole = run("whole", steps=4, **common)
    half = run("half", steps=2, **common)
    resume(half.path, ["steps=4"])
    assert compare_runs(whole.path, half.path) == []


TEACHER = {"steps": 30, "algorithm": {"type": "sft"}, "prompts": {"max": 4}, "schedule": {"groups_per_step": 20}}
TAUGHT = {
    "sampling": {"n": 2, "max_tokens": 3},
    "prompts": {"max": 4},
    "teacher": {"path": "runs/teacher/model"},
    "evaluate": {"every": 4},
    "save": {"every": 2},
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A folder in which a run ``teacher`` has learned some sums."""
    folder = tmp_path_factory.mktemp("taught")
    start(recipe("teacher", **{**TEACHER, "runs_dir": str(folder / "runs")}))
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"divergence": "jsd", "teacher_logprobs": "top_k", "top_k": 10, "minibatches": 2},
        {"teacher_logprobs": "sampled"},
    ],
    ids=["full", "top-k", "sampled"],
)
def test_a_policy_comes_nearer_to_its_teacher(teacher, monkeypatch, settings):
    monkeypatch.chdir(teacher)
    name = f"taught-{settings.get('teacher_logprobs', 'full')}"
    view = run(name, steps=12, algorithm={"type": "distill", **settings}, **TAUGHT)
    divergence = [value for _, value in view.history("divergence")]
    assert sum(divergence[-3:]) < 0.9 * sum(divergence[:3])
    assert view.metrics["sampler_gap_max"] < 1e-4 or "minibatches" in settings
    assert "reward/mean" not in view.metrics
    assert view.evaluations()[-1].body.n == 5
    assert not list(view.path.glob("checkpoints/*/teacher.safetensors"))


def test_a_run_with_a_teacher_goes_on_to_the_same_bits(teacher, monkeypatch):  # pitfall 8
    monkeypatch.chdir(teacher)
    whole = run("whole", steps=6, algorithm={"type": "distill"}, **TAUGHT)
    half = run("half", steps=4, algorithm={"type": "distill"}, **TAUGHT)
    resume(half.path, ["steps=6"])
    assert compare_runs(whole.path, half.path) == []


def test_another_teacher_makes_another_run(teacher, monkeypatch):
    monkeypatch.chdir(teacher)
    view = run(
        "swap", steps=2, algorithm={"type": "distill"}, **{**TAUGHT, "teacher": {"path": "builtin:tiny-llama-char"}}
    )
    keys = ["teacher.path=runs/teacher/model", "steps=3"]
    with pytest.raises(ResumeError, match=r"a resume cannot change teacher.path"):
        resume(view.path, keys)
    assert resume(view.path, keys, fork="swapped").steps == 3


def test_attempts_are_scored_where_it_is_asked(teacher, monkeypatch):
    monkeypatch.chdir(teacher)
    view = run("scored", steps=1, algorithm={"type": "distill", "score_attempts": True}, **TAUGHT)
    assert "reward/mean" in view.metrics


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "1=", "chosen": "a", "answer": "a"}, "has no rejected answer"),
        (
            {"prompt": "1=", "chosen": "a", "rejected": "é"},
            "which the tokenizer of builtin:tiny-llama-char does not know",
        ),
        ({"prompt": "1=", "chosen": "a", "rejected": "a" * 600}, r"has 604 tokens with one of its two answers"),
    ],
)
def test_what_is_no_pair_is_refused_before_a_run(tmp_path, monkeypatch, row, message):
    monkeypatch.chdir(tmp_path)
    prompts = write_pairs(tmp_path / "pairs.jsonl", [row])
    with pytest.raises(DataError, match=message):
        run("bad", steps=1, prompts={**prompts, "held_out": 0}, algorithm={"type": "dpo"}, evaluate={"at_start": False})
    assert not Path("runs").exists()


def test_pairs_are_evaluated_only_where_they_are_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"evaluate.by=pairs asks which of two answers"):
        run("none", steps=1, prompts={"max": 4}, evaluate={"by": "pairs"})


def test_adapters_alone_are_no_reward_model(pairs):
    model = {"lora": {"rank": 2, "export": "adapter"}}
    with pytest.raises(ConfigError, match=r"Set model.lora.export=merged"):
        run("lora", steps=1, prompts=pairs, algorithm={"type": "reward-model"}, model=model)
