"""Pictures of runs, and what is drawn in them."""

import math
import xml.etree.ElementTree

import pytest
from matplotlib.image import imread

from stretto.cli.main import main
from stretto.cli.plot import Plot, metric_names, save_plot, series_of
from stretto.errors import ConfigError, StoreError
from stretto.store import RunSpec, RunStore, RunView, StepBody


def test_both_phases_stand_on_one_axis(view):
    accuracy = series_of(view, "held_out/accuracy")
    assert accuracy.xs == (10, 20, 30, 40, 50, 60, 60, 110, 160, 210, 260)
    assert (accuracy.boundary, accuracy.evaluated) == (60, True)
    assert accuracy.ys[6] == 0.473
    reward = series_of(view, "reward/mean")
    assert (reward.xs[0], reward.xs[-1], len(reward.xs), reward.evaluated) == (61, 260, 200, False)
    samples = series_of(view, "reward/mean", "samples")
    assert samples.xs == tuple(128.0 * i for i in range(1, 201))
    assert samples.boundary == 0
    times = series_of(view, "loss", "time")
    assert list(times.xs) == sorted(times.xs)
    assert len(times.xs) == 260


def test_the_time_between_attempts_and_what_is_not_finite_are_left_out(tmp_path):
    with RunStore.create(tmp_path, RunSpec(hint="x", config={}, seed=0, steps=3)) as store:
        for step, value in enumerate((1.0, math.nan, 3.0)):
            store.event(StepBody(metrics={"loss": value}), phase="main", step=step)
        store.end("done")
    assert series_of(RunView(store.path), "loss").xs == (1, 3)
    assert series_of(RunView(store.path), "loss", "time").xs[-1] < 1  # minutes


def test_metrics_of_steps_and_of_evaluations_have_names(view):
    assert metric_names(view) == [
        "batch/trajectories",
        "batch/written_tokens",
        "held_out/accuracy",
        "loss",
        "reward/mean",
    ]


@pytest.mark.parametrize(
    "plot",
    [
        Plot(title="one"),
        Plot(metrics=("loss",), smooth=20),
        Plot(metrics=("loss", "held_out/accuracy", "reward/mean"), x="samples"),
        Plot(x="time", smooth=1),
    ],
)
def test_pictures_open_and_are_not_blank(make_run, tmp_path, plot):
    views = [RunView(make_run(name)) for name in ("one", "two")]
    for given in (views[:1], views):
        save_plot(given, tmp_path / "curve.png", plot)
        pixels = imread(tmp_path / "curve.png")
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 600
        assert pixels.std() > 0.02


def test_an_svg_names_the_runs(make_run, tmp_path):
    views = [RunView(make_run(name)) for name in ("one", "two")]
    save_plot(views, tmp_path / "both.svg", Plot(title="both"))
    assert xml.etree.ElementTree.parse(tmp_path / "both.svg").getroot().tag.endswith("svg")
    text = (tmp_path / "both.svg").read_text()
    for words in ("one: held-out accuracy", "two: training reward (mean of 10 steps)", "warm-up", "both"):
        assert f"<!-- {words} -->" in text


def test_a_group_of_metrics_is_its_mean(view, tmp_path):
    with pytest.raises(ConfigError, match=r"no metric 'reward' in .* Did you mean 'reward/mean'"):
        save_plot([view], tmp_path / "curve.png", Plot(metrics=("reward",)))


def test_the_reward_of_several_runs_is_dashed(make_run, tmp_path):
    views = [RunView(make_run(name)) for name in ("one", "two")]
    for given, dashed in ((views[:1], 0), (views, 4)):  # each run's line, and its sample in the legend
        save_plot(given, tmp_path / "curve.svg", Plot())
        assert (tmp_path / "curve.svg").read_text().count("stroke-dasharray: 5.6,2.1") == dashed


def test_a_picture_of_nothing_is_still_one(tmp_path):
    with RunStore.create(tmp_path, RunSpec(hint="x", config={}, seed=0, steps=3)) as store:
        store.end("failed")
    save_plot([RunView(store.path)], tmp_path / "curve.png", Plot())
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_what_cannot_be_drawn_is_said(view, tmp_path):
    with pytest.raises(StoreError, match="cannot be saved as"):
        save_plot([view], tmp_path / "missing" / "curve.png", Plot())
    with pytest.raises(ConfigError, match=r"ends in none of .png, .svg"):
        save_plot([view], tmp_path / "curve.jpg", Plot())
    with pytest.raises(ConfigError, match=r"no metric 'los' in quickstart. Did you mean 'loss'"):
        save_plot([view], tmp_path / "curve.png", Plot(metrics=("los",)))


def test_the_command_draws_the_newest_run_or_those_named(make_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "plot"]) == 2
    assert "there is no run in runs" in capsys.readouterr().err
    make_run("one")
    make_run("two")
    assert main(["runs", "plot"]) == 0
    assert capsys.readouterr().out == "wrote plot.png\n"
    assert main(["runs", "plot", "one", "two", "-m", "loss", "--smooth", "9", "--x", "samples", "-o", "loss.svg"]) == 0
    assert (tmp_path / "loss.svg").is_file()
    assert main(["runs", "plot", "onne"]) == 2
    assert "Did you mean 'one'" in capsys.readouterr().err
    assert main(["runs", "plot", "one", "--smooth", "0"]) == 2
