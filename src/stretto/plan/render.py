"""Prints a plan as a table, for ``stretto check``."""

from collections.abc import Sequence

from stretto.plan.one_device import PARTS, Plan
from stretto.plan.sizes import show_bytes

__all__ = ["render_plan"]


def render_plan(plan: Plan) -> str:
    """The plan as lines of text: who sits where with how much memory, the program, and whether it fits."""
    header = ("model", "roles", "parameters", *PARTS)
    rows = [
        (model.name, ", ".join(model.roles), f"{model.parameters:,}", *(_cell(model.memory[part]) for part in PARTS))
        for model in plan.models
    ]
    programs = [
        f"rank {', '.join(map(str, ranks))} runs  {' > '.join(nodes)}" for ranks, nodes in plan.programs.items()
    ]
    groups = ", ".join(str(list(group)) for group in plan.process_groups) or "none (one rank)"
    verdict = "fits" if plan.fits else "does NOT fit"
    itself = f", {show_bytes(plan.process_bytes)} of it the process itself" if plan.process_bytes else ""
    needs = f"{show_bytes(plan.total_bytes)} of {show_bytes(plan.device.memory_bytes)}"
    return "\n".join(
        [
            f"device {plan.device.name}, each Model {plan.layout}; Models take turns, so activations count once",
            "",
            *_table((header, *rows)),
            "",
            f"{verdict}: {needs}{itself} (activations estimated)",
            *programs,
            f"process groups: {groups}",
            "",
        ]
    )


def _cell(size: int) -> str:
    return show_bytes(size) if size else "-"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines
