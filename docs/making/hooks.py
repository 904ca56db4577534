"""What the site does that mkdocs does not: files outside docs/ that pages link to.

In the repository a page links to ``../examples/own_node.py``. The site has a page for every example, made here with its
source; a link to any other file of the repository becomes its name.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:examples|src|benchmarks|tests)\b[^)]*)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every example, with its source."""
    for path in sorted((ROOT / "examples").glob("*.*")):
        if path.suffix in (".py", ".yaml", ".jsonl"):
            language = {".py": "python", ".yaml": "yaml", ".jsonl": "json"}[path.suffix]
            text = f"# {path.name}\n\n``` {language}\n{path.read_text(encoding='utf-8')}```\n"
            page = File.generated(config, f"examples/{path.stem}.md", content=text)
            page.inclusion = page.inclusion.NOT_IN_NAV
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to examples to their pages, and undo those to other files outside docs/."""
    up = "../" * page.file.src_uri.count("/")

    def lead(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        name = f"examples/{Path(target).stem}.md"
        if target.rstrip("/") == "examples":
            return f"[{text}]({up}examples.md)"
        return f"[{text}]({up}{name})" if files.get_file_from_path(name) else text

    return OUTSIDE.sub(lead, markdown)
