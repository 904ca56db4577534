"""``stretto algorithms``: what there is, and all about one of them. The facts are in ``stretto.api.describing``.

Imports inside functions keep ``stretto --help`` quick.
"""

import json
import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.completion import algorithms as algorithm_names

if TYPE_CHECKING:
    from stretto.api.describing import AlgorithmDescription, PresetDescription, SettingDescription

__all__ = ["register", "render_algorithm", "render_list"]

WIDTH = 100

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

group = typer.Typer(
    no_args_is_help=False,
    rich_markup_mode=None,
    help="List the algorithms, and show what each reads.",
    invoke_without_command=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="algorithms")


@group.callback()
def default(ctx: typer.Context) -> None:
    """List the algorithms, and show what each computes and reads.

    Without a command: the list.
    """
    if ctx.invoked_subcommand is None:
        sys.stdout.write(render_list())


@group.command(name="list")
def list_all(as_json: Json = False) -> None:
    """List every algorithm with a line each.

    Example: stretto algorithms list
    """
    from stretto.api.describing import algorithm_names, families, summary_of

    if as_json:
        family = {name: of for of, names in families().items() for name in names}
        rows = [{"name": n, "family": family[n], "summary": summary_of(n)} for n in algorithm_names()]
        print(json.dumps(rows, indent=2))
        return
    sys.stdout.write(render_list())


@group.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An algorithm.", autocompletion=algorithm_names)],
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="FRAMEWORK", help="With the conventions of another framework.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show an algorithm: formula, paper, workflow and every setting it reads.

    Settings are given as algorithm.KEY=VALUE. What GRPO has otherwise is marked by *; `show composed` lists estimators
    and losses too.

    Example: stretto algorithms show dapo
    """
    from stretto.api.describing import describe_algorithm

    found = describe_algorithm(name, preset)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
        return
    sys.stdout.write(render_algorithm(found, preset))


def render_list() -> str:
    """The algorithms by kind, a line each."""
    from stretto.api.describing import algorithm_names, families, summary_of

    width = max(len(name) for name in algorithm_names())
    blocks = [
        "\n".join([f"{family[0].upper()}{family[1:]}:", *(f"  {name:<{width}}  {summary_of(name)}" for name in names)])
        for family, names in families().items()
    ]
    last = (
        "`stretto algorithms show NAME` tells its formula, paper, workflow and settings; algorithm.type=NAME takes it."
    )
    return "\n\n".join([*blocks, last]) + "\n"


def render_algorithm(found: "AlgorithmDescription", preset: str | None = None) -> str:
    """All about an algorithm, as text."""
    from stretto.graph import draw_text

    drawn = draw_text(found.graph).partition("\n\n")[2]
    chosen = next((p for p in found.presets if p.name == preset), None)
    blocks = [
        "\n".join([f"{found.name}", *wrap(found.summary, WIDTH)]),
        "\n".join(wrap(found.doc, WIDTH)),
        _titled("Formula", found.formula.splitlines()),
        _titled("Paper", [found.paper]) if found.paper else "",
        "Workflow\n" + drawn.rstrip("\n"),
        *([_titled(f"Preset {preset}, {chosen.version}", _notes(chosen))] if chosen is not None else []),
        _titled("Settings: algorithm.KEY=VALUE", _settings(found)),
        _parts(found),
        _titled("Presets: algorithm.preset=NAME", _presets(found)) if found.presets and chosen is None else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _titled(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _settings(found: "AlgorithmDescription") -> list[str]:
    lines = [line for setting in found.settings for line in _setting(setting)]
    if found.below:
        lines += [f"  {d.key}={d.default}  ({d.allowed})" for d in found.below]
    other = [s for s in found.settings if s.differs]
    if found.name != "grpo" and other:
        lines += [f"* grpo has another default, or no such setting ({len(other)} of {len(found.settings)})."]
    if found.missing:
        lines += wrap(f"Not read here, but by grpo: {', '.join(found.missing)}.", WIDTH)
    return lines


def _setting(s: "SettingDescription") -> Iterator[str]:
    beside = ""
    if s.default != s.vetted and s.key != "preset":
        beside = f", without the preset {s.vetted}"
    elif s.differs:
        beside = f", grpo: {s.reference}" if s.reference is not None else ""
    yield f"{'*' if s.differs else ' '} {s.key}={s.default}  ({s.allowed}{beside})"
    yield from (f"      {line}" for line in wrap(s.doc, WIDTH - 8))


def _parts(found: "AlgorithmDescription") -> str:
    blocks: list[str] = []
    for key in dict.fromkeys(part.key for part in found.parts):
        mine = [part for part in found.parts if part.key == key]
        width = max(len(part.name) for part in mine)
        lines: list[str] = []
        for part in mine:
            lines += _hanging(f"{part.name:<{width}}  ", part.summary)
            settings = ", ".join(f"{s.key}={s.default}" for s in part.settings)
            lines += _hanging(" " * (width + 2), settings) if settings else []
        blocks.append(_titled(f"algorithm.{key}.type=NAME, with its settings beside it", lines))
    return "\n\n".join(blocks)


def _hanging(first: str, text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)) or [first.rstrip()]


def _presets(found: "AlgorithmDescription") -> list[str]:
    return [
        line
        for preset in found.presets
        for line in [f"{preset.name} ({preset.version})", *(f"  {note}" for note in _notes(preset))]
    ]


def _notes(preset: "PresetDescription") -> list[str]:
    """What a preset changes and keeps, in lines."""
    values = ", ".join(f"{key}={value}" for key, value in preset.values.items())
    return [
        *wrap(values or "as here: nothing changes", WIDTH),
        *(line for defect in preset.defects for line in wrap(f"a defect that is kept: {defect}", WIDTH)),
        *(line for note in preset.not_here for line in wrap(f"not reproduced: {note}", WIDTH)),
    ]
