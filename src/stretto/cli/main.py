"""The entry point: the list of commands, and the exit status of every outcome.

0 done, 2 what the user gave cannot work, 3 the run failed, 130 interrupted with its state saved. An error is a
sentence on standard error; its traceback is shown with ``--debug`` only.
"""

import io
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

import stretto
from stretto.cli import algorithms, commands, completion, debugging, doctoring, new, runs, trying
from stretto.cli.output import lasting_output
from stretto.errors import Interrupted, StrettoError

__all__ = ["app", "exit_status", "main"]

FAULT = 3
"""What nobody foresaw also counts as a failed run."""

app = typer.Typer(
    name="stretto",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: the same on every terminal, and rich is not loaded for it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def show_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        print(f"stretto {stretto.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. Goes anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Post-train language models with reinforcement learning.

    RECIPE is a packaged name (quickstart, ppo-addition, smollm-chain-sum, gsm-style-jsonl), a YAML file, or
    module:function. A recipe's keys are set by key=value after it; `stretto train --help` lists them all.

    Example: stretto train quickstart steps=300 seed=1
    """


# Help lists them in this order: the way of a task from nothing to a comparison.
new.register(app)
trying.register(app)
commands.register(app)
algorithms.register(app)
runs.register(app)
debugging.register(app)
doctoring.register(app)
completion.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own by default) and return its exit status."""
    if "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does, so that module:function finds the user's own modules
    lasting_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a sign that a terminal lacks must not end a command
    completion.prepare()
    given = list(sys.argv[1:] if arguments is None else arguments)
    plain = [a for a in given if a != "--debug"]
    return exit_status(lambda: app(plain, prog_name="stretto"), debug=plain != given)


def exit_status(command: Callable[[], object], *, debug: bool = False) -> int:
    """Run ``command``, say what it raised, if anything, and return the status that stands for it."""
    try:
        command()
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 0
    except StrettoError as error:
        _say(error, "interrupted" if isinstance(error, Interrupted) else "error", debug)
        return error.exit_status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Interrupted.exit_status
    except Exception as error:  # noqa: BLE001 the last resort: nothing above this line may meet the user as a traceback
        _say(error, f"error: unexpected {type(error).__name__}", debug)
        if not debug:
            print("This is a fault of stretto or of code given to it; --debug shows where.", file=sys.stderr)
        return FAULT
    return 0


def _say(error: Exception, prefix: str, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print(f"{prefix}: {error}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):  # what failed after it
        print(f"  {note}", file=sys.stderr)
