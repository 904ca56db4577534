"""``stretto doctor``: the examination of this machine, as text or JSON. The looking is in ``stretto.api.doctor``.

Imports inside functions keep ``stretto --help`` quick.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.commands import RunsDir

if TYPE_CHECKING:
    from stretto.api.doctor.examining import Examination

__all__ = ["register", "render_examination"]

UNUSABLE = 3
"""The exit status when something needed does not work."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(doctor)


def doctor(
    runs_dir: RunsDir = Path("runs"),
    fix: Annotated[bool, typer.Option("--fix", help="Remove half-written files of killed runs, nothing else.")] = False,
    no_trials: Annotated[bool, typer.Option("--no-trials", help="Look only; try no engine or backend.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Time for all trials.")] = 180.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Examine this machine and what killed runs left.

    Says what is installed, tries what works here with tiny runs in a process of its own, and names unfinished runs,
    half-written files and orphaned processes with what to do. Exit status 3 if something needed does not work.

    Example: stretto doctor --no-trials
    """
    from stretto.api.doctor.examining import examine
    from stretto.api.doctor.leftovers import remove_files

    removed = remove_files(runs_dir) if fix else []
    found = examine(runs_dir, trial_s=None if no_trials else seconds)
    if as_json:
        print(json.dumps({**found.as_json(), "removed": removed}, indent=2))
    else:
        for name in removed:
            print(f"removed {name}")
        sys.stdout.write(render_examination(found))
    if not found.ok:
        raise typer.Exit(UNUSABLE)


def render_examination(found: "Examination") -> str:
    """An examination as text."""
    parts = [_machine(found), _packages(found), _extras(found)]
    if found.trials:
        parts.append(
            ["Tried here:"]
            + [f"  {'yes' if t.ok else 'NO':<4}{t.name} ({t.seconds:.1f} s): {t.detail}" for t in found.trials]
        )
    left = [line for each in found.leftovers for line in (f"  {each.message}", f"    -> {each.remedy}")]
    parts.append(["Left by killed runs:", *left] if left else ["Killed runs left nothing."])
    parts += [[f"{a.severity}: {a.message}", f"  -> {a.remedy}"] for a in found.advice]
    parts.append(["All that is needed works." if found.ok else "Something needed does not work."])
    if not found.trials and found.ok:
        parts[-1] = ["All that is needed is there; nothing was tried (--no-trials)."]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _machine(found: "Examination") -> list[str]:
    m = found.machine
    alone, beside = m.training_threads
    features = f" ({', '.join(m.features)})" if m.features else ""
    return [
        f"{m.system}, {m.cpu}{features}",
        f"  cores: {m.physical} physical, {m.logical} logical, {m.usable} for this process; "
        f"OMP_NUM_THREADS {m.omp_threads or 'not set'}",
        f"  threads of training by default: {alone}, and {beside} while the engine runs ahead (max_staleness 1)",
        f"  memory: {m.memory_bytes / 1e9:.1f} GB, {m.available_bytes / 1e9:.1f} GB available; "
        f"disk for runs: {m.disk_free_bytes / 1e9:.1f} GB free",
    ]


def _packages(found: "Examination") -> list[str]:
    width = max(len(p.name) for p in found.packages)
    return ["Packages:"] + [
        f"  {p.name:<{width}}  {p.installed or 'missing'}{'' if p.fits else f'  does not fit {p.needs}'}"
        for p in found.packages
    ]


def _extras(found: "Examination") -> list[str]:
    lines = ["Extras:"]
    for extra in found.extras:
        state = f"pip install 'stretto[{extra.name}]' (lacks {', '.join(extra.missing)})" if extra.missing else "there"
        lines.append(f"  {extra.name:<8}{state}: {extra.enables}")
    return lines
