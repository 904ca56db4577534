"""The commands that make, check and continue runs: train, check, graph, resume, eval.

Every import inside a function is there to keep ``stretto --help`` quick: recipes load pydantic, runs load torch.
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from stretto.cli.completion import keys, recipes, runs

if TYPE_CHECKING:
    from stretto.api.progress import Observer
    from stretto.config.load import LoadedRecipe
    from stretto.graph import Graph
    from stretto.store import RunView

__all__ = ["RunsDir", "TakesKeys", "register"]

RECIPE = "A packaged name, a YAML file, or module:function."
KEYS = "Recipe keys to set, such as steps=100 backend.lr=3e-5 warmup=null."

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help=RECIPE, autocompletion=recipes)]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help=KEYS, autocompletion=keys)]
RunsDir = Annotated[Path, typer.Option("--dir", help="The folder of runs.")]

STATUS = {"done": 0, "failed": 3, "killed": 3, "interrupted": 130, "running": 0}


class Format(StrEnum):
    """What ``graph`` prints."""

    text = "text"
    svg = "svg"
    json = "json"
    yaml = "yaml"


SUFFIXES = {
    ".svg": Format.svg,
    ".json": Format.json,
    ".yaml": Format.yaml,
    ".yml": Format.yaml,
    ".txt": Format.text,
}
"""What ``graph -o FILE`` writes if no format is given."""


class Phase(StrEnum):
    """Which phase ``graph`` draws."""

    main = "main"
    warmup = "warmup"


class TakesKeys(TyperCommand):
    """A command that takes ``key=value``, and answers a key that was written as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; click's hook."""
        options = {name for param in self.params for name in param.opts} | set(self.get_help_option_names(ctx))
        for index, given in enumerate(args):
            option, equals, value = given.partition("=")
            if option.startswith("--") and len(option) > 2 and option not in options and not ctx.resilient_parsing:
                _refuse_option(option, value if equals else next(iter(args[index + 1 :]), ""))
        return super().parse_args(ctx, args)


class _WithKeys(TakesKeys):
    """A command whose help ends with every key of a recipe."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the keys: click's hook for what follows the options."""
        from stretto.config.reference import help_fields

        super().format_epilog(ctx, formatter)
        with formatter.section("Keys of a recipe"):
            formatter.write_dl(help_fields(), col_max=34)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(cls=_WithKeys)(train)
    app.command(cls=TakesKeys)(check)
    app.command(cls=TakesKeys)(graph)
    app.command(cls=TakesKeys)(resume)
    app.command(name="eval", cls=TakesKeys)(evaluate)


def _refuse_option(option: str, value: str) -> None:
    """Raises ConfigError that shows how a key is written, if ``option`` is one; other options are click's to refuse."""
    from stretto.config.checking import known_keys
    from stretto.config.foreign import FOREIGN
    from stretto.errors import ConfigError

    name = option.lstrip("-").replace("-", "_")
    known = set(known_keys())
    places = [name] if name in known else list(FOREIGN.get(name, ()))
    places = places or sorted({key for key in known if key.rpartition(".")[2] == name})
    if places:
        shown = value if value and not value.startswith("-") else "VALUE"
        written = " or ".join(f"{key}={shown}" for key in places)
        raise ConfigError(f"{option} is no option: keys of a recipe are written without dashes. Write {written}.")


def train(recipe: Recipe, overrides: Overrides = None) -> None:
    """Start a new run of a recipe.

    The run is kept in runs/NAME, where NAME is the recipe's name, numbered if it is taken, or what name=... says.

    Example: stretto train quickstart seed=1 name=second-try
    """
    loaded = _load(recipe, overrides)
    print(f"{loaded.hint}: starting", flush=True)

    def go(observer: "Observer") -> "RunView":
        from stretto.api import start

        return start(loaded.recipe, hint=loaded.hint, observer=observer)

    _run(go)


def check(recipe: Recipe, overrides: Overrides = None) -> None:
    """Check a recipe and print its plan.

    Runs nothing: says who sits on the device, what it needs and whether memory suffices.

    Example: stretto check quickstart engine.slots=512
    """
    loaded = _load(recipe, overrides)

    from stretto.api import check as plan_of

    print(plan_of(loaded.recipe).rstrip("\n"))


def graph(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|WORKFLOW", help=f"{RECIPE} Or a workflow: grpo, ppo, sft.", autocompletion=recipes
        ),
    ],
    overrides: Overrides = None,
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="How to draw it; by default as FILE ends, else as text.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write to a file instead.")] = None,
    phase: Annotated[Phase, typer.Option("--phase", help="Which phase of a recipe.")] = Phase.main,
) -> None:
    """Draw the graph of a recipe or workflow.

    Example: stretto graph ppo -o ppo.svg
    """
    from stretto.errors import ConfigError

    if format is None:
        format = Format.text if out is None else _format_of(out)
    text = _draw(_graph_of(what, overrides, phase.value), format).rstrip("\n") + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}. Give another file to -o.") from error
    print(f"wrote {out}")


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or folder.", autocompletion=runs)],
    overrides: Overrides = None,
    fork: Annotated[
        str | None, typer.Option("--fork", metavar="NAME", help="Go on as a new run, whose every key may change.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Go on with a run that stopped.

    It goes on from its newest whole checkpoint, to the same bits as if it had never stopped. Keys that cannot change
    what was learned may be set (steps, evaluate, save, timeouts); others need --fork.

    Example: stretto resume quickstart steps=1200
    """
    from stretto.store import find_run

    path = find_run(runs_dir, run)
    print(f"{path.name}: resuming", flush=True)

    def go(observer: "Observer") -> "RunView":
        from stretto.api import resume as resume_run

        return resume_run(path, overrides or [], fork=fork, observer=observer)

    _run(go)


def evaluate(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|MODEL", help="A run's name or folder, or a model's folder.", autocompletion=runs),
    ],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Evaluate a run's policy, or a model.

    On the held-out prompts and on every set of evaluate.sets, greedily unless evaluate.temperature says otherwise.
    Trains nothing, and takes only the keys that an evaluation reads: prompts.*, reward.*, engine.*, evaluate.* (not
    every, at_start, at_end), sampling.max_tokens, sampling.stop, sampling.deadline_s (and seed, for a model).

    Example: stretto eval quickstart evaluate.limit=200 evaluate.n=8 evaluate.temperature=1
    """
    from stretto.api import evaluate as evaluate_target
    from stretto.api.scores import interval_words, percent, score_words

    if not as_json:
        print(f"{target}: evaluating", flush=True)
    results = evaluate_target(target, overrides or [], runs_dir=runs_dir)
    if as_json:
        print(json.dumps({name: {"n": r.n, "metrics": dict(r.metrics)} for name, r in results.items()}, indent=2))
        return
    for name, result in results.items():
        called, of = ("", "held-out prompts") if name == "held_out" else (f"{name}: ", "prompts")
        how = "greedy" if result.greedy else f"{result.attempts} sampled attempts each"
        how = "by pairs of answers" if result.pairs else how
        print(
            f"{called}accuracy {percent(result.accuracy)} (95% interval {interval_words(name, result.metrics)}) "
            f"on {result.n} {of}, {how}{score_words(name, result.metrics)}"
        )
    keys = {override.partition("=")[0] for override in overrides or []}
    if "held_out" in results and any(key.startswith("prompts.") for key in keys) and "prompts.held_out" not in keys:
        print("These are the prompts that are held out from training; prompts.held_out=1 scores all there are.")


def _run(go: "Callable[[Observer], RunView]") -> None:
    """Run with a display, then say how it ended. The exit status is the run's."""
    from stretto.api.progress import can_draw, watching
    from stretto.cli.summary import end_of_run

    with watching(sys.stdout) as observer:
        view = go(observer)
    with suppress(KeyboardInterrupt):  # it cuts the summary short; the run is what it was
        print()
        sys.stdout.write(end_of_run(view, unicode=can_draw(sys.stdout)))
        sys.stdout.flush()
    if STATUS[view.status]:
        raise typer.Exit(STATUS[view.status])


def _load(recipe: str, overrides: list[str] | None) -> "LoadedRecipe":
    from stretto.config.load import load_recipe
    from stretto.recipes import FOLDER

    return load_recipe(recipe, overrides or [], packaged=FOLDER)


def _graph_of(what: str, overrides: list[str] | None, phase: str = "main") -> "Graph":
    """The graph of a workflow (its name, its file, its ``module:function``), or else of a recipe."""
    from stretto.errors import ConfigError, nearest
    from stretto.recipes import packaged
    from stretto.workflows.builtin import WORKFLOWS

    if what not in WORKFLOWS and not _is_workflow(what):
        if ":" not in what and not Path(what).suffix and what not in packaged():
            raise ConfigError(f"no recipe or workflow is called {what!r}.{nearest(what, [*WORKFLOWS, *packaged()])}")
        recipe = _load(what, overrides).recipe
    elif overrides:
        raise ConfigError(f"{what} is a workflow, which has no key {overrides[0]!r}. Keys belong to a recipe.")
    else:
        recipe = what

    from stretto.api import graph_of

    return graph_of(recipe, phase)


def _is_workflow(what: str) -> bool:
    """Whether a file is the written form of a graph (it has ``nodes``), or ``module:function`` is a workflow."""
    from stretto.config.reading import has_key
    from stretto.errors import GraphError
    from stretto.graph import load_workflow

    suffix = Path(what).suffix
    if suffix in (".yaml", ".yml"):
        return has_key(Path(what), "nodes")
    if ":" in what:
        try:
            load_workflow(what)
        except GraphError:
            return False  # then it has to be a recipe, and what is wrong with it is said when it is loaded
        return True
    return suffix == ".json"


def _format_of(out: Path) -> Format:
    """What the name of a file asks for."""
    from stretto.errors import ConfigError

    if out.suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ConfigError(f"{out} does not say how to draw it: its name ends in none of {known}. Add --format.")
    return SUFFIXES[out.suffix]


def _draw(graph: "Graph", format: Format) -> str:
    from stretto.graph import draw_json, draw_svg, draw_text, dump_yaml

    draw: dict[Format, Callable[[Graph], str]] = {
        Format.text: draw_text,
        Format.svg: draw_svg,
        Format.json: draw_json,
        Format.yaml: dump_yaml,
    }
    return draw[format](graph)
