"""``runs compare``: what is the same, what is not, and where equal settings part."""

from pathlib import Path

import pytest

from stretto.api import start
from stretto.cli.comparison import compare_text
from stretto.cli.main import main
from stretto.config.load import recipe_from_mapping
from stretto.store import RunSpec, RunStore, RunView, SettingBody, StepBody, first_difference, settings_of

FAKE = {
    "steps": 3,
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "prompts": {"type": "builtin", "name": "addition", "max": 4},
    "schedule": {"groups_per_step": 2},
    "reward": {"use": "exact_match", "workers": 0},
}


def made(tmp_path: Path, name: str, *losses: float, config: dict | None = None, seed: int = 0) -> RunView:
    spec = RunSpec(hint="x", config={"seed": seed, **(config or {})}, seed=seed, steps=3, name=name)
    with RunStore.create(tmp_path, spec) as store:
        for step, loss in enumerate(losses):
            store.event(StepBody(metrics={"loss": loss, "time/train_s": step + 0.1}), phase="main", step=step)
        store.end("done")
    return RunView(store.path)


def test_the_first_difference_of_what_both_have(tmp_path):
    one, same = made(tmp_path, "one", 3, 2, 1), made(tmp_path, "same", 3, 2)
    assert first_difference(one, same) == (None, 4)
    found, shared = first_difference(one, made(tmp_path, "parts", 3, 2.5, 9))
    assert (str(found), shared) == ("main step 1 loss: 2 | 2.5", 6)


def test_settings_are_those_that_later_attempts_left(tmp_path):
    with RunStore.create(tmp_path, RunSpec(hint="x", config={"a": {"b": 1}, "steps": 3}, seed=0, steps=3)) as store:
        store.event(SettingBody(key="steps", old=3, new=9))
        store.end("done")
    assert settings_of(RunView(store.path)) == {"a.b": 1, "steps": 9}


def test_equal_settings_are_to_give_equal_numbers(tmp_path):
    one, parts = made(tmp_path, "one", 3, 2, 1), made(tmp_path, "parts", 3, 2.5, 9)
    text = compare_text([one, made(tmp_path, "same", 3, 2), parts])
    assert "No setting differs." in text
    assert "one and same have the same settings, and all of their 4 shared numbers are the same to the bit." in text
    assert "they part at main step 1 loss: 2 | 2.5." in text
    assert "time/train_s" not in text


def test_settings_that_decide_no_result_are_named(tmp_path):
    one = made(tmp_path, "one", 3, config={"save": {"every": 5}})
    text = compare_text([one, made(tmp_path, "two", 3, config={"save": {"every": None}})])
    assert ["save.every", "5", "null"] in [line.split() for line in text.splitlines()]
    assert "one and two differ in no setting that decides results (only in save.every), and all of their 2" in text
    assert "have the same settings" not in text


def test_settings_that_differ_are_shown_and_no_equality_expected(tmp_path):
    one = made(tmp_path, "one", 3, config={"backend": {"lr": 1e-4}})
    other = made(tmp_path, "other", 4, config={"backend": {"lr": 3e-4, "eps": 1.0}}, seed=1)
    lines = [line.split() for line in compare_text([one, other]).splitlines()]
    assert ["seed", "0", "1"] in lines
    assert ["backend.lr", "0.0001", "0.0003"] in lines
    assert ["backend.eps", "-", "1.0"] in lines
    assert ["loss", "3", "4"] in lines
    assert "part at" not in compare_text([one, other])


def test_figures_of_a_run_with_warm_up(make_run):
    lines = compare_text([RunView(make_run("one")), RunView(make_run("two", end=False))]).splitlines()
    rows = [line.split() for line in lines]
    assert ["one", "two"] in rows
    assert ["status", "done", "killed"] in rows
    assert ["warm-up", "steps", "60", "60"] in rows
    assert ["held_out/accuracy", *["47.3%", "->", "88.2%", "of", "2000"] * 2] in rows


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        start(recipe_from_mapping({**FAKE, "name": name, "seed": seed}))


def test_the_command(two_runs, capsys):
    assert main(["runs", "compare", "one", "again", "other", "-o", "all.png"]) == 0
    out = capsys.readouterr().out
    assert "one and again have the same settings, and all of their" in out
    assert "one and other have" not in out
    assert out.endswith("wrote all.png\n")
    assert Path("all.png").stat().st_size > 1000
    assert main(["runs", "compare", "one"]) == 2
    assert "one alone cannot be compared" in capsys.readouterr().err
    assert main(["runs", "compare", "one", "agian"]) == 2
    assert "Did you mean 'again'" in capsys.readouterr().err
