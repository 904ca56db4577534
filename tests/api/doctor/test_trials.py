"""What works is tried in a process of its own, and what does not come to its end is told."""

import json

import pytest

from stretto.api.doctor import examining
from stretto.api.doctor.machine import look_at_machine
from stretto.api.doctor.packages import Package
from stretto.api.doctor.trials import Trial, run_trials
from stretto.cli.main import main


@pytest.mark.slow
def test_tiny_runs_work_here():
    trials = {trial.name: trial for trial in run_trials(300)}
    assert all(trial.ok for trial in trials.values()), trials
    assert "batch-invariant: done" in trials["a run of one step on the CPU"].detail
    assert "builtin:tiny-llama-char" in trials["built-in models"].detail


def test_a_trial_that_takes_too_long():
    (trial,) = run_trials(0.01)
    assert not trial.ok and trial.needed and "no answer within 0.01 s" in trial.detail


def test_advice():
    missing = Package(name="torch", needs=">=2.13", installed=None, fits=False)
    old = Package(name="rich", needs=">=13.9", installed="1.0", fits=False)
    told = list(examining._about_packages([missing, old]))
    assert [advice.severity for advice in told] == ["problem", "warning"]
    assert told[0].remedy == "pip install 'torch>=2.13'" and "rich is 1.0" in told[1].message
    trials = [Trial(name=n, ok=False, detail="it broke", needed=needed) for n, needed in (("a", True), ("b", False))]
    assert [advice.severity for advice in examining._about_trials(trials)] == ["problem", "warning"]


def test_threads_that_spin_are_warned_of(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    told = list(examining._about_machine(look_at_machine(tmp_path), tmp_path))
    assert any("OMP_NUM_THREADS=4096" in advice.message and advice.severity == "warning" for advice in told)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--no-trials"]) == 0
    out = capsys.readouterr().out
    for words in ("cores:", "memory:", "Packages:", "torch", "Extras:", "nothing was tried"):
        assert words in out
    assert main(["doctor", "--no-trials", "--json", "--fix"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["removed"] == [] and told["machine"]["logical"] >= 1
    assert main(["doctor", "--seconds", "0.01"]) == 3
    assert "problem: It does not work here: the rest" in capsys.readouterr().out
