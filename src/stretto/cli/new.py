"""``stretto new``: a folder with a recipe, a reward, its test and ten rows, which trains as it is made.

Owns which files are made and what is filled in. The files themselves lie in ``scaffold/``: ``shared`` for all, ``text``
for models that take plain text, ``chat`` for those with a chat template.
"""

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Scaffold", "make_scaffold", "register"]

TINY = "builtin:tiny-llama-char"
BUILTIN = "builtin:"

FOLDER = Path(__file__).parent / "scaffold"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LONGEST = 100
RENAMED = {"gitignore": ".gitignore"}
"""A file of its own name would act on this repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """What was made: the folder, its files by name, and whether prompts are chat messages."""

    folder: Path
    files: tuple[str, ...]
    chat: bool


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(new)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder to make.")],
    model: Annotated[
        str, typer.Option("--model", metavar="PATH", help="The model to train: a folder or a built-in name.")
    ] = TINY,
) -> None:
    """Make a folder to start a task of your own from.

    It has a recipe, a reward with its test and ten rows of a small task, and trains as it is. The comments in its files
    say what to change.

    Example: stretto new my-task
    """
    made = make_scaffold(Path(name), model)
    print(f"made {made.folder}: {', '.join(made.files)}")
    print(f"\nNext:\n  cd {made.folder}\n  stretto train recipe.yaml   README.md has the other commands")


def make_scaffold(folder: Path, model: str = TINY) -> Scaffold:
    """Make ``folder`` with everything in it, whole or not at all.

    Raises ConfigError for a name that cannot be a folder's or a folder that has something in it, DataError for a model
    that is not there. Nothing that exists is written over.
    """
    from stretto.errors import ConfigError

    if not NAME.fullmatch(folder.name) or len(folder.name) > LONGEST:
        raise ConfigError(
            f"{str(folder)!r} cannot be the name of a task: it must be of letters, digits, '.', '_' and '-', a letter "
            f"or digit first, and at most {LONGEST} of them. Give another name."
        )
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"{folder} exists already, and nothing is written over. Give another name, or remove it.")
    if not folder.parent.is_dir():
        raise ConfigError(f"{folder.parent} is no folder that a task could be made in. Make it first.")
    model, chat = _resolve(model)
    files = {RENAMED.get(p.name, p.name): p for kind in ("shared", "chat" if chat else "text") for p in _files(kind)}
    filled = {"name": folder.name, "model": model, "takes": ", about half a minute" if model == TINY else ""}
    try:
        with tempfile.TemporaryDirectory(prefix=f".new-{folder.name}-", dir=folder.parent) as temporary:
            whole = Path(temporary) / folder.name
            whole.mkdir()
            for name, source in files.items():
                text = source.read_text(encoding="utf-8")
                for key, value in filled.items():
                    text = text.replace("{{" + key + "}}", value)
                (whole / name).write_text(text, encoding="utf-8")
            os.replace(whole, folder)  # onto nothing or an empty folder; it fails if another made one meanwhile
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}. Give another place.") from error
    return Scaffold(folder=folder, files=tuple(sorted(files)), chat=chat)


def _files(kind: str) -> list[Path]:
    return sorted(path for path in (FOLDER / kind).iterdir() if path.is_file())


def _resolve(model: str) -> tuple[str, bool]:
    """The model as the recipe writes it, and whether it is a chat model. DataError if it is not there.

    A folder becomes absolute: the recipe is run from another folder than this command.
    """
    from stretto.backends.torch.hf_config import load_hf_config  # reads JSON only: no torch

    load_hf_config(model)
    if model.startswith(BUILTIN):
        return model, model != TINY
    path = Path(model).expanduser().resolve()
    return json.dumps(str(path))[1:-1], _has_template(path)


def _has_template(path: Path) -> bool:
    """Whether a model's folder says how chat messages are written for it."""
    if (path / "chat_template.jinja").is_file():
        return True
    config = path / "tokenizer_config.json"
    return config.is_file() and '"chat_template"' in config.read_text(encoding="utf-8")
