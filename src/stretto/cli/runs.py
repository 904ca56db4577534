"""``stretto runs``: what the records of runs say. Reads only.

Imports inside functions keep ``stretto --help`` quick.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.commands import RunsDir

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List runs and show one.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="runs")


@group.command(name="list")
def list_all(runs_dir: RunsDir = Path("runs")) -> None:
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
    if views:
        sys.stdout.write(run_table(views))
    elif not damaged:
        print(f"there is no run in {runs_dir}; `stretto train quickstart` makes one")
    for error in damaged:
        print(f"damaged: {error}", file=sys.stderr)
    if damaged:
        raise typer.Exit(StoreError.exit_status)


@group.command()
def show(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A name or folder; the newest by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show how a run stands.

    With its learning curve and the last value of each metric.

    Example: stretto runs show quickstart --json
    """
    from stretto.cli.progress import can_draw
    from stretto.cli.summary import describe_run
    from stretto.store import RunView, find_run, newest_run

    view = RunView(newest_run(runs_dir) if run is None else find_run(runs_dir, run))
    if as_json:
        print(json.dumps(view.summary(), indent=2))
        return
    sys.stdout.write(describe_run(view, unicode=can_draw(sys.stdout)))
