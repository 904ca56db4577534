"""What the documents show works: their Python runs, their recipes load, their commands parse, their links lead on.

A fenced block whose first line is a comment with a file's name is that file (JSON lines are named in the text before);
all other Python of a page is one script, in the order of the page. A block of ``py`` is code of another library.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from stretto.cli.main import app
from stretto.cli.new import make_scaffold
from stretto.config.checking import known_keys
from stretto.config.load import load_recipe
from stretto.config.overrides import apply_overrides, apply_resume_overrides
from stretto.graph import load_graph
from stretto.recipes import FOLDER
from stretto.store import RunView
from stretto.workflows.nodes import NODES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("concepts/*.md"))]
NAMED_BY_USERS = (
    "reward.parts",
    "evaluate.sets",
    "warmup.until",
    "warmup.evaluate.sets",
    "prompts.tasks",
    "reward.with",
    "environment.with",
)
"""Keys below which users choose names."""
GENERATED = sorted(DOCS.glob("reference/*.md"))
"""Made from code (``test_site.py`` holds them to it); their commands and links have to lead somewhere too."""
SHORT = ROOT / "tests" / "e2e" / "short.yaml"

NAMED = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")
RUNNING = [
    ("README.md", "index.md", "algorithms.md", "coming-from-trl.md", "your-own-loop.md", "off-policy.md"),
    ("evaluation.md", "filters-and-order.md"),
    ("first-run.md",),
    ("debugging.md",),
    ("your-own-data.md",),
    ("your-own-reward.md",),
    ("your-own-workflow.md",),
]
"""The pages whose Python is run; those in one row in one process, since the imports take longer than the steps."""
RUN_EACH = "import runpy, sys\nfor script in sys.argv[1:]:\n    runpy.run_path(script, run_name='__main__')\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block, and the last line of text before it."""

    language: str
    text: str
    before: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    before, language, lines = "", None, []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if language is None:
                language, lines = line[3:].strip(), []
            else:
                found.append(Block(language=language, text="\n".join(lines) + "\n", before=before))
                language = None
        elif language is not None:
            lines.append(line)
        elif line.strip():
            before = line
    assert language is None, f"{page.name}: a fence is not closed"
    return found


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows."""
    for block in blocks(page):
        named = NAMED.match(block.text)
        lines = re.search(r"`([\w-]+\.jsonl)`", block.before)
        if named:
            (folder / named[1]).write_text(block.text)
        elif block.language == "json" and lines:
            (folder / lines[1]).write_text(block.text)


def script_of(page: Path) -> str:
    return "\n".join(b.text for b in blocks(page) if b.language == "python" and not NAMED.match(b.text))


def commands(page: Path) -> Iterator[str]:
    """Every ``stretto`` command line of a page, from blocks and from the text."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language in ("", "sh", "console"):
            for line in block.text.splitlines():
                if line.removeprefix("$ ").startswith("stretto "):
                    yield line.removeprefix("$ ").split("  #")[0].strip()
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`(stretto [a-z][^`]*)`", outside)


def check_command(line: str) -> None:
    """The command exists and takes these arguments; a recipe loads, a graph is one. Nothing is run."""
    words = shlex.split(line)[1:]
    cli = typer.main.get_command(app)
    with cli.make_context("stretto", list(words), resilient_parsing=True):
        pass
    command = cli
    while hasattr(command, "commands") and words:
        command, words = command.commands[words[0]], words[1:]
    if words and words != ["--help"]:
        with command.make_context(command.name, list(words)) as context:
            check_arguments(str(command.name), context.params)


def check_arguments(command: str, given: dict) -> None:
    overrides = [o for o in given.get("overrides") or [] if o != "key=value"]  # which stands for any key
    if command in ("train", "check", "try"):
        load_recipe(given["recipe"], overrides, packaged=FOLDER)
    elif command == "graph":
        from stretto.cli.commands import _graph_of

        assert _graph_of(given["what"], overrides).nodes
    elif command in ("resume", "eval"):
        recipe = load_recipe("quickstart", [], packaged=FOLDER).recipe
        change = apply_resume_overrides if command == "resume" and given["fork"] is None else apply_overrides
        change(recipe, overrides)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """A fresh working folder, whose modules can be imported by name and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def stretto_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize("page", [*PAGES, *GENERATED], ids=lambda p: p.name)
def test_commands_parse(page, in_folder):
    write_files(page, in_folder)
    for line in commands(page):
        try:
            check_command(line)
            if line.startswith("stretto new ") and not Path(line.split()[2]).exists():
                os.chdir(make_scaffold(Path(line.split()[2])).folder)  # the page goes on in it
                write_files(page, Path())
        except Exception as error:
            raise AssertionError(f"{page.name}: `{line}`: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_keys_that_pages_name_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    if page.name.startswith("coming-from"):
        text = re.sub(r"^\|[^|]*\|", "", text, flags=re.MULTILINE)  # the other library's keys
    known = set(known_keys())
    sections = {key.partition(".")[0] for key in known if "." in key}
    for key in re.findall(r"`(\w+(?:\.\w+)+)(?=[`=:])", text):
        first, below = key.partition(".")[0], any(key.startswith(f"{name}.") for name in NAMED_BY_USERS)
        assert first not in sections or key in known or below, f"{page.name}: there is no key {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_is_python(page):
    for block in blocks(page):
        if block.language in ("python", "py"):
            compile(block.text, f"{page.name}: {block.text.partition(chr(10))[0]}", "exec")


def test_a_wrong_command_is_noticed(in_folder):
    wrong = ["trian quickstart", "train quikstart", "train quickstart stpes=3", "runs show --jsn", "graph nothing"]
    for line in [*wrong, "resume quickstart backend.lr=1"]:
        with pytest.raises(Exception):  # noqa: B017 - the command line's and ours
            check_command(f"stretto {line}")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_recipes_and_graphs_load(page, in_folder):
    write_files(page, in_folder)
    for block in blocks(page):
        named = NAMED.match(block.text)
        if block.language == "yaml":
            assert named, f"{page.name}: a YAML block has no file's name in its first line"
            if "nodes:" in block.text:
                assert load_graph(in_folder / named[1], NODES).nodes
            else:
                load_recipe(named[1], [], packaged=FOLDER)


@pytest.mark.parametrize("names", RUNNING, ids=lambda names: names[0])
def test_python_runs(names, tmp_path):
    scripts = [f"{name}.py" for name in names]
    for page in (p for p in PAGES if p.name in names):
        write_files(page, tmp_path)
        (tmp_path / f"{page.name}.py").write_text(script_of(page))
    if "first-run.md" in names:
        stretto_run(tmp_path, "-m", "stretto", "train", str(SHORT), "name=quickstart")
    done = stretto_run(tmp_path, "-c", RUN_EACH, *scripts)
    runs = [RunView(run) for run in (tmp_path / "runs").iterdir()]
    assert runs and all(run.status == "done" for run in runs), done.stdout
    explained = (DOCS / "metrics.md").read_text(encoding="utf-8")
    for metric in {metric for run in runs for metric in run.metrics}:
        own = metric.startswith(("reward/", "logged/", "filter/use/"))
        assert own or f"`{metric.removeprefix('critic/')}`" in explained, f"metrics.md does not explain {metric}"


def test_the_recipe_of_the_reward_page_runs(tmp_path):
    write_files(DOCS / "your-own-reward.md", tmp_path)
    stretto_run(tmp_path, "-m", "stretto", "train", "vowels.yaml", "steps=2", "save.every=null")
    run = RunView(tmp_path / "runs" / "vowels")
    assert (run.status, run.steps) == ("done", 2)
    assert set(run.groups()[0].group.trajectories[0].rewards) == {"vowels"}


@pytest.mark.parametrize("page", [*PAGES, *GENERATED], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        found = page.parent / path if path else page
        assert found.exists(), f"{page.name}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", t).strip().lower().replace(" ", "-") for t in titles}, target


def test_files_named_by_how_it_works_exist():
    text = (DOCS / "how-it-works.md").read_text()
    table = text[text.index("## Which file holds what") :]
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", table):
        assert (ROOT / name).exists() or (ROOT / "src" / "stretto" / name).exists(), name


def test_the_graph_that_pages_show_is_the_one_that_is_drawn():
    from stretto.graph import draw_text
    from stretto.workflows.builtin import WORKFLOWS

    drawn = draw_text(WORKFLOWS["ppo"].graph())
    picture = drawn[drawn.index("   ") : drawn.index("[report]") + len("[report]")]
    assert picture.strip() in (ROOT / "README.md").read_text()


def test_importing_stretto_loads_nothing_heavy():
    code = (
        "import sys, stretto\n"
        "heavy = {'torch', 'transformers', 'ray', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert 'pydantic' not in sys.modules and 'numpy' not in sys.modules\n"
        "for name in stretto.__all__:\n"
        "    assert name in dir(stretto) and getattr(stretto, name) is not None\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    stretto_run(ROOT, "-c", code)


def test_an_unknown_name_of_stretto_is_an_attribute_error():
    import stretto

    with pytest.raises(AttributeError, match="module 'stretto' has no attribute 'trian'"):
        _ = stretto.trian
