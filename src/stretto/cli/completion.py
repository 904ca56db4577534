"""Shell completion: ``stretto completion SHELL``, and what words a shell is offered.

A shell's script asks ``stretto`` itself, by environment variables: ``_STRETTO_COMPLETE=complete_bash``, ``COMP_WORDS``
with the line and ``COMP_CWORD`` with the place in it; the answer is a word a line. The three scripts ask in the same
way. What is imported to answer is as little as may be, since a person waits.
"""

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ASKED", "algorithms", "keys", "prepare", "recipes", "register", "runs"]

ASKED = "_STRETTO_COMPLETE"
"""The environment variable by which a shell asks."""

BASH = """\
_stretto_completion() {
    local found
    found=$(_STRETTO_COMPLETE=complete_bash COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD "$1" 2>/dev/null)
    local IFS=$'\\n'
    COMPREPLY=($found)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _stretto_completion stretto
"""

ZSH = """\
#compdef stretto
_stretto_completion() {
    local -a found
    found=("${(@f)$(_STRETTO_COMPLETE=complete_bash COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1)) \\
        stretto 2>/dev/null)}")
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
    _files -g '*.y(a|)ml'
}
compdef _stretto_completion stretto
"""

FISH = """\
function __stretto_completion
    set -l before (commandline -opc)
    env _STRETTO_COMPLETE=complete_bash COMP_WORDS="$before "(commandline -ct) COMP_CWORD=(count $before) \\
        stretto 2>/dev/null
end
complete -c stretto -a "(__stretto_completion)"
"""

WHERE = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}


class Shell(StrEnum):
    """A shell that has a script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(completion)


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, recipes, runs and keys.

    For good, put a line into ~/.bashrc or ~/.zshrc: eval "$(stretto completion bash)". In fish: stretto completion
    fish | source.

    Example: stretto completion bash
    """
    print({Shell.bash: BASH, Shell.zsh: ZSH, Shell.fish: FISH}[shell], end="")


def prepare() -> None:
    """Let the application answer if a shell asks; else nothing is loaded for it."""
    if ASKED in os.environ:
        # typer answers only with its own install options in the help, or after this call of its own.
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()


def recipes(incomplete: str) -> list[str]:
    """Packaged recipes, and YAML files of this folder."""
    from stretto.recipes import packaged

    files = sorted(p.name for p in Path().glob("*.y*ml") if p.suffix in (".yaml", ".yml"))
    return [name for name in [*packaged(), *files] if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """The runs in ``runs/``, by their folders alone: what is in them is not read."""
    found = sorted(path.parent.name for path in Path("runs").glob("*/run.json"))
    return [name for name in found if name.startswith(incomplete)]


def algorithms(incomplete: str) -> list[str]:
    """Algorithms, by the models of the settings alone."""
    from stretto.config.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


def keys(incomplete: str) -> list[str]:
    """Keys of recipes with their ``=``; nothing once a value is being written."""
    return [] if "=" in incomplete else [f"{key}=" for key in _settable() if key.startswith(incomplete)]


def _settable() -> Iterator[str]:
    """Every key that takes a value: no sections, but for the one that may be null."""
    from stretto.config.checking import known_keys

    known = sorted(set(known_keys()))
    sections = {key[:at] for key in known for at, sign in enumerate(key) if sign == "."} - {"warmup"}
    yield from (key for key in known if key not in sections)
