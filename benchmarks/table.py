"""Prints the rows of a benchmark and keeps them in ``benchmarks/results/NAME.json``."""

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """A table with the keys of the first row as its header."""
    header = list(rows[0])
    cells = [header, *([_cell(row[key]) for key in header] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    print(title)
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def write_result(name: str, result: object) -> None:
    """Keep a result with the kind of machine it was made on."""
    RESULTS.mkdir(exist_ok=True)
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    text = json.dumps({"machine": machine, "result": result}, indent=2) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
