"""``stretto runs``: what the records of runs say, shown, compared, drawn and exported. Changes no run.

Imports inside functions keep ``stretto --help`` quick.
"""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.commands import RunsDir
from stretto.cli.completion import runs as run_names

if TYPE_CHECKING:
    from stretto.store import RunView

__all__ = ["register"]

Runs = Annotated[
    list[str] | None, typer.Argument(metavar="RUN...", help="Names or folders of runs.", autocompletion=run_names)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Axis(StrEnum):
    """What ``plot`` draws over."""

    step = "step"
    time = "time"
    samples = "samples"


class What(StrEnum):
    """What ``export`` writes."""

    model = "model"
    csv = "csv"
    samples = "samples"


group = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, show, compare, bisect, plot, trace and export runs."
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="runs")


@group.command(name="list")
def list_all(as_json: Json = False, runs_dir: RunsDir = Path("runs")) -> None:
    """List every run, oldest first.

    Example: stretto runs list
    """
    from stretto.cli.summary import run_table
    from stretto.errors import StoreError
    from stretto.store import RunView, list_runs

    views: list[RunView] = []
    damaged: list[StoreError] = []
    for path in list_runs(runs_dir):
        try:
            views.append(RunView(path))
        except StoreError as error:
            damaged.append(error)
    if as_json:
        print(json.dumps([view.summary() for view in views], indent=2))
    elif views:
        sys.stdout.write(run_table(views))
    elif not damaged:
        print(f"there is no run in {runs_dir}; `stretto train quickstart` makes one")
    for error in damaged:
        print(f"damaged: {error}", file=sys.stderr)
    if damaged:
        raise typer.Exit(StoreError.exit_status)


@group.command()
def show(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A name or folder; the newest by default.", autocompletion=run_names),
    ] = None,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show how a run stands.

    With its learning curve and the last value of each metric.

    Example: stretto runs show quickstart --json
    """
    from stretto.api.progress import can_draw
    from stretto.cli.summary import describe_run
    from stretto.store import RunView, find_run, newest_run

    view = RunView(newest_run(runs_dir) if run is None else find_run(runs_dir, run))
    if as_json:
        print(json.dumps(view.summary(), indent=2))
        return
    sys.stdout.write(describe_run(view, unicode=can_draw(sys.stdout)))


@group.command()
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Names or folders of two runs or more.", autocompletion=run_names),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Draw them over each other too (.png, .svg).")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Compare runs: figures, evaluations, metrics, settings.

    Of runs with the same settings it says whether they are the same to the bit, or where they part first.

    Example: stretto runs compare quickstart quickstart-2 -o both.png
    """
    from stretto.cli.comparison import compare_text
    from stretto.cli.plot import Plot, save_plot
    from stretto.errors import ConfigError

    if len(runs) < 2:
        raise ConfigError(f"{runs[0]} alone cannot be compared. Name another run too, or use `stretto runs show`.")
    views = _views(runs, runs_dir)
    sys.stdout.write(compare_text(views))
    if out is not None:
        save_plot(views, out, Plot())
        print(f"\nwrote {out}")


@group.command()
def bisect(
    a: Annotated[str, typer.Argument(metavar="A", help="A run's name or folder.", autocompletion=run_names)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another's.", autocompletion=run_names)],
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Find the first step, node and tensor in which two runs differ.

    Their records tell the first step; where weights may have parted, the steps around it are made again for both, and
    every edge, gradient and weight is held side by side. Both runs are only read.

    Example: stretto runs bisect quickstart quickstart-2
    """
    from dataclasses import asdict

    from stretto.api.bisecting import bisect as bisect_runs
    from stretto.cli.debugging import bisected_text

    found = bisect_runs(a, b, runs_dir=runs_dir)
    if as_json:
        print(json.dumps({"same": found.parting is None, **asdict(found)}, indent=2))
        return
    sys.stdout.write("".join(f"{line}\n" for line in bisected_text(found)))


@group.command()
def plot(
    runs: Runs = None,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The picture: .png or .svg.")] = Path(
        "plot.png"
    ),
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="Draw this metric; may be given several times.")
    ] = None,
    smooth: Annotated[int | None, typer.Option("--smooth", min=1, help="Average over this many steps.")] = None,
    x: Annotated[Axis, typer.Option("--x", help="What to draw over.")] = Axis.step,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Draw a run, or several over each other.

    The newest run by default. Without --metric it draws the reward of every step and the accuracy of evaluations, with
    the warm-up shaded.

    Example: stretto runs plot quickstart -m loss -m batch/length --smooth 20 -o loss.svg
    """
    from stretto.cli.plot import Plot, save_plot
    from stretto.store import RunView, newest_run

    views = _views(runs, runs_dir) if runs else [RunView(newest_run(runs_dir))]
    title = ", ".join(view.name for view in views)
    save_plot(views, out, Plot(title=title, metrics=tuple(metric or ()), x=x.value, smooth=smooth))
    print(f"wrote {out}")


@group.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or folder.", autocompletion=run_names)],
    what: Annotated[
        What, typer.Option("--what", help="The policy, the numbers of steps and evaluations, or what was written.")
    ] = What.model,
    step: Annotated[
        str | None, typer.Option("--step", metavar="N|best", help="Which saved step's policy; the newest by default.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Where to; RUN-WHAT by default.")] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write a run's policy, metrics or samples for other tools.

    The policy is a Hugging Face folder with its tokenizer, metrics are CSV, samples are JSON lines with prompt, answer
    and reward as text. The folder is whole or not there, and never written over.

    Example: stretto runs export quickstart --step best --to my-model
    """
    from stretto.api.exporting import export_csv, export_model, export_samples
    from stretto.errors import ConfigError
    from stretto.store import RunView, find_run

    if step is not None and what is not What.model:
        raise ConfigError(f"--step chooses a policy, and --what {what} is of all steps. Leave --step out.")
    view = RunView(find_run(runs_dir, run))
    folder = to if to is not None else Path(f"{view.name}-{what}")
    match what:
        case What.model:
            print(f"wrote {folder}, the policy of {export_model(view, folder, step).path.name}")
        case What.csv:
            steps, evaluations = export_csv(view, folder)
            print(f"wrote {folder}: metrics.csv ({steps} steps), evaluations.csv ({evaluations} evaluations)")
        case What.samples:
            print(f"wrote {folder}: samples.jsonl ({export_samples(view, folder)} attempts)")


@group.command()
def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or folder.", autocompletion=run_names)],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Where to; RUN-trace.json by default.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write when everything in a run happened, for Perfetto.

    Every node of every draw and step, publications, checkpoints and idle times, on one clock. Open the file at
    ui.perfetto.dev or chrome://tracing; nothing is uploaded. Made from the run's record, also while it runs.

    Example: stretto runs trace quickstart -o trace.json
    """
    from stretto.api.tracing import export_trace
    from stretto.store import RunView, find_run

    view = RunView(find_run(runs_dir, run))
    path = out if out is not None else Path(f"{view.name}-trace.json")
    print(f"wrote {path} ({export_trace(view, path):,} spans)")


def _views(names: Sequence[str], runs_dir: Path) -> "list[RunView]":
    from stretto.store import RunView, find_run

    return [RunView(find_run(runs_dir, name)) for name in names]
