"""The page about the command line: every command with its arguments and options, from the application itself."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer
from docstrings import cell, inline

from stretto.cli.main import app

VALUES = {int: "N", float: "X", Path: "PATH"}
"""What stands for an option's value of a type."""

HEAD = """# Commands

What every command takes. [By task](../commands.md), with examples of each, may be the better place to begin.

`KEY=VALUE` is [a key of a recipe](../configuration.md), such as `steps=100` or `backend.lr=3e-5`. The exit status is
one of [four](errors.md#exit-statuses).

"""


def commands_page() -> str:
    """Every command, in the order of ``stretto --help``."""
    root = typer.main.get_command(app)
    text = HEAD + f"## stretto\n\n{_prose(root.help or '')}" + _table("option", _options(root))
    for words, command in _walk(root, ["stretto"]):
        text += f"## {' '.join(words[1:])}\n\n"
        usage = [_metavar(p) for p in command.params if p.param_type_name == "argument"]
        text += f"```text\n{' '.join([*words, *usage])}\n```\n\n" + _prose(command.help or "")
        given = [p for p in command.params if p.param_type_name == "argument"]
        text += _table("argument", [(f"`{_metavar(p)}`", _help(p)) for p in given]) + _table(
            "option", _options(command)
        )
    return text.rstrip() + "\n"


def _walk(group: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
    """(words of the command line, command) of every command below ``group``."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _walk(command, [*words, name])
        else:
            yield [*words, name], command


def _prose(help: str) -> str:
    """Help as Markdown; its example as a block."""
    text = inline(cleandoc(help.replace("\b", ""))).rstrip()
    example = re.search(r"\n*Examples?:\s*((?:stretto|eval).*)$", text, flags=re.DOTALL)
    if example is None:
        return text + "\n\n"
    lines = [line.strip() for line in example[1].splitlines() if line.strip()]
    return text[: example.start()].rstrip() + "\n\n```\n" + "\n".join(lines) + "\n```\n\n"


def _options(command: Any) -> list[tuple[str, str]]:
    rows = []
    for param in command.params:
        if param.param_type_name != "option" or getattr(param, "hidden", False):
            continue
        value = "" if param.is_flag else f" {_metavar(param)}"
        names = ", ".join(f"`{name}{value if i == len(param.opts) - 1 else ''}`" for i, name in enumerate(param.opts))
        off = "".join(f", `{name}`" for name in param.secondary_opts)
        rows.append((names + off, _help(param)))
    return rows


def _metavar(param: Any) -> str:
    """What stands for a value: the words to choose from, or its name; in brackets if it may be left out."""
    kind, is_argument = param.type_descriptor.annotation, param.param_type_name == "argument"
    shown = param.metavar
    if shown is None and inspect.isclass(kind) and issubclass(kind, Enum):
        shown = "|".join(str(choice.value) for choice in kind)
    elif shown is None:
        shown = param.name.upper() if is_argument else VALUES.get(kind, "TEXT")
    if is_argument and not param.required:
        shown = f"[{shown}]"
    return f"{shown}..." if param.nargs == -1 else shown


def _help(param: Any) -> str:
    default = getattr(param.default, "value", param.default)
    text = inline(param.help or "")
    if default not in (None, False, True, ()) and not callable(default) and "efault" not in text:
        text += f" Default: `{default}`."
    return text + (" May be given several times." if param.multiple else "")


def _table(first: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    lines = [f"| {cell(name)} | {cell(text)} |" for name, text in rows]
    return "\n".join([f"| {first} | |", "|---|---|", *lines]) + "\n\n"
