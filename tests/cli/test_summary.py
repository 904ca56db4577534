"""What is said of a run when it ends, and later."""

from dataclasses import replace

import pytest

from stretto.cli.summary import compared, describe_run, end_of_run, run_table
from stretto.store import EvalBody, Evaluation, Example, RunView


def evaluation(*completions: str, step: int = 0) -> Evaluation:
    examples = tuple(
        Example(uid=f"{i}", prompt=f"p{i}", completion=c, answer="1", reward=float(c == "1"))
        for i, c in enumerate(completions)
    )
    return Evaluation(phase="main", step=step, body=EvalBody(name="held_out", accuracy=0.5, n=9, examples=examples))


def test_changed_problems_come_first_whatever_became_of_them():
    pairs = compared([evaluation("1", "2", "1", "3"), evaluation("0"), evaluation("1", "1", "5", "3", step=9)])
    assert [p.before.uid for p in pairs] == ["1", "2", "0"]
    assert [p.changed for p in pairs] == [True, True, False]
    assert compared([evaluation("1")]) == []
    assert compared([]) == []


def test_the_end_of_a_run(view):
    text = end_of_run(view)
    lines = text.splitlines()
    assert lines[0].startswith("Run quickstart: done, 200 steps in ")
    assert "seed 3" in lines[0]
    assert lines[1] == "Held-out accuracy: 47.3% -> 88.2% (+40.9 points), greedy, 2000 problems"
    assert (view.path / "curve.png").is_file()
    assert f"The same as a picture: {view.path / 'curve.png'}" in text
    assert "Held-out problems, before and after:" in text
    # The four that were right stay right; the next three changed. A newline in an answer is shown, not printed.
    assert r"  4+4=  7\n wrong  ->  8 right   (answer 8)" in lines
    assert f"  stretto eval {view.path}" in text
    assert "stretto train quickstart seed=4" in text
    assert f"stretto resume {view.path} steps=400" in text
    assert "●" in text
    assert end_of_run(view, unicode=False).isascii()


@pytest.mark.parametrize(("name", "offered"), [("quickstart", True), ("quickstart-12", True), ("mine", False)])
def test_the_quickstart_is_offered_again_only_after_a_quickstart(make_run, name, offered):
    text = end_of_run(RunView(make_run(name)))
    assert [word in text for word in ("train quickstart", "ppo-addition")] == [offered, offered]


def test_a_part_that_never_applied_is_told(view):
    assert "applied to no attempt" not in end_of_run(view)
    parts = {name: {"use": "mine:f", "weight": 1.0} for name in ("mean", "closes")}  # reward/mean is recorded
    view.info = replace(view.info, config={"reward": {"use": None, "parts": parts}})
    told = [line for line in end_of_run(view).splitlines() if "applied to no attempt" in line]
    assert len(told) == 1 and told[0].startswith("reward.parts.closes applied to no attempt: it gave None for each")


def test_a_run_that_goes_on_or_was_killed_is_to_be_resumed(make_run):
    killed = RunView(make_run(end=False))
    assert killed.status == "killed"
    assert f"stretto resume {killed.path} " in end_of_run(killed)


def test_a_run_shown(view):
    text = describe_run(view)
    assert "reward/mean " in text
    assert "●" in text


def test_the_table_of_runs(make_run):
    table = run_table([RunView(make_run("one")), RunView(make_run("two", end=False))])
    assert [line.split()[:5] for line in table.splitlines()] == [
        ["run", "status", "steps", "seed", "accuracy"],
        ["one", "done", "200", "3", "88.2%"],
        ["two", "killed", "200", "3", "88.2%"],
    ]


def test_a_run_in_its_warm_up_is_shown_by_it(make_run):
    view = RunView(make_run(end=False, main=False))
    assert describe_run(view).splitlines()[1] == "Warm-up: 60 steps, 46.0% of 500 held-out problems right"
    assert run_table([view]).splitlines()[1].split()[:7] == [
        "quickstart",
        "killed",
        "60",
        "of",
        "warm-up",
        "3",
        "46.0%",
    ]
    assert "Warm-up" not in describe_run(RunView(make_run("later", end=False)))
