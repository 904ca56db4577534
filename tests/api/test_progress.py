"""What a run says while it goes."""

import io
import os
import pty
import re
import sys

import pytest
from rich.console import Console

from stretto.api.progress import LiveDisplay, PlainDisplay, Progress, duration, percent, watching
from stretto.store import AttemptBody, EvalBody, Event, PhaseBody, ResumedFrom, SettingBody, StepBody


def fold(events):
    progress = Progress()
    for event in events:
        progress.see(event)
    return progress


def test_progress_knows_where_the_run_stands(events):
    half = [e for e in events if not (isinstance(e.body, StepBody) and e.phase == "main" and (e.step or 0) >= 100)]
    half = half[: 1 + max(i for i, e in enumerate(half) if isinstance(e.body, StepBody))]
    progress = fold(half)
    assert (progress.phase, progress.workflow, progress.steps, progress.steps_done) == ("main", "grpo", 200, 100)
    assert progress.reward is not None
    assert progress.dropped == 2
    # 448 tokens a step, a step every half second but for a few events between.
    assert progress.tokens_per_s == pytest.approx(896, rel=0.1)
    assert progress.left_s == pytest.approx(50, rel=0.1)
    assert re.fullmatch(
        r"main step 100/200  reward 0\.\d{3}  held-out \d+\.\d%  \d+ tokens/s  \d+s left  2 groups dropped",
        progress.status(),
    )


def test_evaluations_and_saves_are_none_of_a_steps_time():
    progress = fold([event(PhaseBody(state="start", workflow="grpo", steps=101))])
    clock = 0.0
    for step, pause in enumerate((90.0, 0.0, 0.0, 7.0)):
        clock += pause + 2.0
        metrics = {"time/evaluate_s": pause - pause / 3, "time/save_s": pause / 3, "batch/written_tokens": 50.0}
        progress.see(event(StepBody(metrics=metrics), step=step, time_s=clock))
        assert progress.left_s == pytest.approx(2.0 * (100 - step))
        assert progress.tokens_per_s == pytest.approx(25.0)


def test_a_step_took_no_less_than_its_own_work():
    progress = fold([event(PhaseBody(state="start", workflow="grpo", steps=11))])
    work = {"time/wait_s": 1.0, "time/train_s": 2.0, "time/drain_s": 0.5, "time/publish_s": 0.5}
    progress.see(event(StepBody(metrics={**work, "time/evaluate_s": 9.0}), time_s=8.0))
    assert progress.left_s == pytest.approx(40.0)


def test_the_time_left_is_not_told_in_warm_up(events):
    warm = [e for e in events if e.phase == "warmup"][:30]
    assert fold(warm).left_s is None
    assert fold(warm).status().startswith("warmup step 27/1000  loss ")


def test_plain_lines(events):
    out = io.StringIO()
    display = PlainDisplay(out)
    for event in events:
        display(event)
    lines = out.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[0] == "run quickstart, seed 3"
    assert "warmup starts (sft, up to 1000 steps)" in lines
    assert "warmup step 60: held-out accuracy 46.0% (500 problems)" in lines
    assert "warmup ended after 60 steps: its target is reached" in lines
    assert "main starts (grpo, 200 steps)" in lines
    assert "main step 0: held-out accuracy 47.3% (2000 problems)" in lines
    assert len([line for line in lines if line.startswith("main step 200: held-out")]) == 1
    assert [line for line in lines if "dropped:" in line] == ["group of '1+1' dropped: too long"]
    # 0.5 s an event and a line every 5 s.
    status = [line for line in lines if re.match(r"main step \d+/200", line)]
    assert 200 / 10 * 0.8 <= len(status) <= 200 / 10 * 1.2


def event(body, step=0, time_s=0.0, phase="main"):
    return Event(seq=0, time_s=time_s, attempt=2, body=body, phase=phase, step=step)


def test_rare_events_have_their_line():
    progress = Progress()
    source = ResumedFrom(phase="main", steps_done=40, seq=9)
    assert progress.see(event(AttemptBody(attempt=2, pid=1, host="h", resumed_from=source))) == (
        "attempt 2 goes on from main step 40",
    )
    assert progress.see(event(AttemptBody(attempt=1, pid=1, host="h", resumed_from=None))) == ()
    assert progress.see(event(SettingBody(key="steps", old=5, new=9))) == ("changed steps: 5 -> 9",)
    assert progress.see(event(StepBody(metrics={"updates/skipped": 1.0}))) == (
        " step 1: 1 update(s) skipped as not finite",
    )
    assert progress.skipped == 1
    assert progress.see(event(PhaseBody(state="start", workflow="grpo", steps=90), step=40)) == (
        "main goes on after step 40 (grpo, 90 steps)",
    )
    assert progress.see(event(PhaseBody(state="end", workflow="grpo", steps=90, reason="steps"))) == (
        "main ended after 40 steps",
    )
    assert progress.see(event(PhaseBody(state="end", workflow="sft", steps=9, reason="steps"), phase="warmup")) == (
        "warmup ended after 40 steps, all it may take; the run goes on",
    )
    (line,) = progress.see(event(PhaseBody(state="end", workflow="sft", steps=9, reason="missed"), phase="warmup"))
    assert "warmup.until is not reached" in line and "lower warmup.lr" in line
    assert progress.see(event(EvalBody(name="held_out", accuracy=0.5, n=9), phase=None)) == (
        "evaluation: held-out accuracy 50.0% (9 problems)",
    )


def test_a_terminal_gets_a_live_foot_and_the_same_lines(events):
    out = io.StringIO()
    with LiveDisplay(Console(file=out, force_terminal=True, width=90, highlight=False)) as display:
        for e in events:
            display(e)
        display._live.refresh()
    shown = out.getvalue()
    assert "main starts (grpo, 200 steps)" in shown
    assert "200/200" in shown
    assert "\x1b[" in shown


def test_the_display_suits_the_output():
    with watching(io.StringIO()) as observer:
        assert isinstance(observer, PlainDisplay)
    parent, child = pty.openpty()
    try:
        with os.fdopen(child, "w") as terminal, watching(terminal) as observer:
            assert isinstance(observer, LiveDisplay)
    finally:
        os.close(parent)


def test_words_for_numbers():
    assert [duration(s) for s in (0.04, 9.94, 59.4, 65, 3599.6, 3840)] == [
        "0.0s",
        "9.9s",
        "59s",
        "1m 05s",
        "1h 00m",
        "1h 04m",
    ]
    assert percent(0.4567) == "45.7%"


RECIPE = {
    "prompts": ["1+1=", "2+2="],
    "reward": "exact_match",
    "steps": 2,
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "schedule": {"groups_per_step": 2},
}


def test_a_run_from_python_shows_its_progress_when_asked_or_looked_at(tmp_path, monkeypatch, capsys):
    from stretto import train

    monkeypatch.chdir(tmp_path)
    events = []

    def fails(prompt, trajectory):
        raise ValueError("not today")

    with pytest.raises(Exception, match="not today"):  # a failed run shows too
        train("grpo", progress=True, observer=events.append, **{**RECIPE, "reward": fails})
    assert "run grpo, seed 0" in capsys.readouterr().out
    assert [e.kind for e in events][:2] == ["run", "attempt"]
    recipe = {**RECIPE, "prompts": [{"prompt": "1+1=", "answer": "2"}]}
    train("grpo", **recipe)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    train("grpo", **recipe)
    assert "main starts (grpo, 2 steps)" in capsys.readouterr().out
    train("grpo", progress=False, **recipe)
    assert capsys.readouterr().out == ""
