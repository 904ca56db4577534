"""Writes the pages and pictures of docs/ that are made from code.

python docs/making/write.py            write those that changed
python docs/making/write.py --check    write nothing, name those that changed, and end with status 1 if there are any
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from catalogue_pages import errors_page, graph_pictures, nodes_page, recipes_page, rewards_page
from command_pages import commands_page
from example_page import examples_page
from learning_page import learning_page
from named_page import named_page
from pictures import concept_pictures
from python_pages import algorithms_page, python_page
from speed_page import speed_page

from stretto.config.reference import reference_markdown

DOCS = Path(__file__).parents[1]

PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": reference_markdown,
    "examples.md": examples_page,
    "speed.md": speed_page,
    "learning.md": learning_page,
    "reference/commands.md": commands_page,
    "reference/named-algorithms.md": named_page,
    "reference/python.md": python_page,
    "reference/algorithms.md": algorithms_page,
    "reference/rewards.md": rewards_page,
    "reference/nodes-and-workflows.md": nodes_page,
    "reference/recipes.md": recipes_page,
    "reference/errors.md": errors_page,
}


def generated() -> Iterator[tuple[Path, str]]:
    """(file, what it has to hold) of everything that is made."""
    for name, page in PAGES.items():
        yield DOCS / name, page()
    for name, picture in {**graph_pictures(), **concept_pictures()}.items():
        yield DOCS / "pictures" / name, picture


def main(arguments: list[str]) -> int:
    """Write or check, and say what was."""
    changed = [(file, text) for file, text in generated() if not file.exists() or file.read_text("utf-8") != text]
    for file, text in changed:
        print(f"{'differs from the code' if arguments else 'wrote'}: {file.relative_to(DOCS.parent)}")
        if not arguments:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
    if changed and arguments:
        print("make reference writes them again")
    return 1 if changed and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
