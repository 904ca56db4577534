"""``stretto debug``, and what it and ``runs bisect`` say. The work is done in ``stretto.api``.

Imports inside functions keep ``stretto --help`` quick.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.commands import Phase, RunsDir
from stretto.cli.completion import runs as run_names

if TYPE_CHECKING:
    from stretto.api.bisecting import Bisected
    from stretto.api.replaying import Debugged

__all__ = ["bisected_text", "debugged_text", "register"]

DIFFERS = 3
"""The exit status if a run that promises the same bits does not give them."""

SHOWN = 10
"""Differing numbers, or settings, that are listed."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(debug)


def debug(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or folder.", autocompletion=run_names)],
    step: Annotated[int, typer.Option("--step", metavar="N", min=0, help="Which step, from 0 as in its events.")],
    node: Annotated[
        str | None, typer.Option("--node", metavar="ID", help="Only this node, in which breakpoint() opens pdb.")
    ] = None,
    draw: Annotated[
        int | None, typer.Option("--draw", metavar="D", help="Of a per-group node: for which draw.")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option("--dump", metavar="FOLDER", help="Write what the edges carried into a new folder.")
    ] = None,
    phase: Annotated[Phase, typer.Option("--phase", help="Which phase.")] = Phase.main,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Make a recorded step again, to the same bits.

    From the newest checkpoint before it and the recorded groups, without an engine; the run is only read. It lists what
    each node gave, and says whether the numbers are the recorded ones to the bit; the exit status is 3 if they are not,
    and the run is deterministic. With --node that node alone runs again, here: breakpoint() in it, in a loss or in a
    reward opens pdb. A node that samples runs again with the weights that it had.

    Example: stretto debug quickstart --step 20 --node update
    """
    from stretto.api.debugging import debug as make_again

    made = make_again(run, step, phase=phase.value, node=node, draw=draw, dump=dump, runs_dir=runs_dir)
    sys.stdout.write("".join(f"{line}\n" for line in debugged_text(made)))
    if dump is not None:
        print(f"wrote {dump}: what the edges carried; index.json says what is where")
    if made.differing and made.deterministic:
        raise typer.Exit(DIFFERS)


def debugged_text(made: "Debugged") -> Iterator[str]:
    """What is said of a step that was made again."""
    of = "" if made.draw is None else f", draw {made.draw}"
    what = "" if made.node is None else f", node {made.node}"
    yield f"{made.run}: step {made.step} of phase {made.phase}{of}{what}, made again from {made.began}"
    yield from (f"note: {note}" for note in made.notes)
    names = [f"{row.id} ({row.use})" for row in made.nodes]
    width = max((len(name) for name in names), default=0)
    for name, row in zip(names, made.nodes, strict=True):
        ran = f"{row.runs:>4} x {row.seconds:8.4f} s" if row.runs else f"{'-':>17}"
        yield f"  {name:<{width}}  {ran}  {row.gave}{' (recorded)' if row.recorded else ''}"
    yield from _verdict(made)


def _verdict(made: "Debugged") -> Iterator[str]:
    if not made.compared:
        return
    what = "numbers" if made.draw is None else "parts of the group"
    if not made.differing:
        left_out = " (times left out)" if made.draw is None else ""
        yield f"all {made.compared} {what} are the recorded ones, to the bit{left_out}"
        return
    yield f"{len(made.differing)} of {made.compared} {what} are not the recorded ones:"
    for d in made.differing[:SHOWN]:
        yield f"  {d.where}: {d.a} recorded, {d.b} now"
    if len(made.differing) > SHOWN:
        yield f"  and {len(made.differing) - SHOWN} more"
    if made.deterministic:
        yield "This run promises the same bits on one kind of machine, with the same threads and versions."
    else:
        yield "Only a run with schedule.deterministic=true promises the same bits."


def bisected_text(found: "Bisected") -> Iterator[str]:
    """What is said of two runs side by side."""
    there = f"{_count(found.steps, 'step')}, {_count(found.groups, 'group')} and {_count(found.numbers, 'number')}"
    parting = found.parting
    if parting is None:
        yield f"{found.a} and {found.b} are the same to the bit in all that both recorded: {there}"
        return
    yield f"{found.a} and {found.b} part in step {parting.step} of phase {parting.phase} (from 0); before: {there}"
    rows = [
        ("node", parting.node or "-"),
        ("what", parting.what),
        ("name", f"{parting.name}{f' at {parting.index}' if parting.index else ''}"),
        (found.a, parting.a),
        (found.b, parting.b),
        ("same before", ", ".join(parting.same)),
        *(("setting", str(setting)) for setting in found.settings[:SHOWN]),
        (
            "",
            f"and {more} more; `stretto runs compare` lists them" if (more := len(found.settings) - SHOWN) > 0 else "",
        ),
        ("note", parting.note),
    ]
    width = max(len(name) for name, value in rows if value)
    yield from (f"  {name:<{width}}  {value}" for name, value in rows if value)


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
