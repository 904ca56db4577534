"""The page that lists the examples, from their own docstrings."""

import ast
from pathlib import Path

from docstrings import cell, first_sentence

EXAMPLES = Path(__file__).parents[2] / "examples"

HEAD = """# Examples

Scripts to start from, in `examples/`. Each runs as it stands, in seconds to a minute on a CPU:
`python examples/own_reward.py`.

| file | what it shows |
|---|---|
"""


def examples_page() -> str:
    """Every file of examples/ with the first sentence of what it says of itself."""
    return HEAD + "".join(f"| [`{path.name}`](../examples/{path.name}) | {cell(_about(path))} |\n" for path in _files())


def _files() -> list[Path]:
    return sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml", ".jsonl"))


def _about(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return first_sentence(ast.get_docstring(ast.parse(text)) or "")
    if path.suffix == ".yaml":
        return text.partition("\n")[0].removeprefix("#").strip()
    return f"{len(text.splitlines())} rows for the examples beside it"
