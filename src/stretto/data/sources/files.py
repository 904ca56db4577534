"""The files that ``prompts.path`` names: a file, several, a pattern, or a sample that comes with Stretto."""

import os
from glob import glob, has_magic
from pathlib import Path

from stretto.errors import DataError, nearest

__all__ = ["named_files"]

SAMPLES = Path(__file__).parents[1] / "samples"


def named_files(path: str | list[str], kind: str) -> list[tuple[str, Path]]:
    """(prefix of its rows' uids, file) of every file, those of a pattern by name. ``kind`` is JSONL or parquet.

    The prefix is empty for a single file, so that its rows are just numbered. Of several it is the file's name, or its
    path below the folder they share where names repeat: uids do not depend on where the folder lies.
    """
    names = [path] if isinstance(path, str) else path
    files = [file for name in names for file in _matching(name, kind)]
    if len(files) == 1:
        return [("", files[0])]
    if len({file.name for file in files}) == len(files):
        return [(f"{file.name}:", file) for file in files]
    shared = os.path.commonpath([file.resolve().parent for file in files])
    return [(f"{file.resolve().relative_to(shared).as_posix()}:", file) for file in files]


def _matching(name: str, kind: str) -> list[Path]:
    if name.startswith("builtin:"):
        samples = {file.name: file for file in SAMPLES.iterdir()}
        sample = name.removeprefix("builtin:")
        if sample not in samples:
            raise DataError(f"prompts.path={name} is no built-in sample.{nearest(sample, samples)}")
        return [samples[sample]]
    path = Path(name)
    try:
        path.exists()
    except (OSError, ValueError) as error:  # a name that no file can have
        reason = error.strerror if isinstance(error, OSError) else error
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        raise DataError(f"prompts.path={shown!r} is no name of a file ({reason}). Set it to a {kind} file.") from error
    if has_magic(name) and not path.exists():
        found = sorted(Path(match) for match in glob(name, recursive=True) if Path(match).is_file())
        if not found:
            raise DataError(
                f"no file matches prompts.path={name} (looked in {Path.cwd()}). Set prompts.path to {kind} files."
            )
        return found
    if path.is_dir():
        raise DataError(
            f"the prompt file {name} is a folder, not a file. Set prompts.path to a {kind} file or a pattern such as "
            f"{name.rstrip('/')}/*.{kind.lower()}, or prompts.type=datasets to read the folder."
        )
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        hint = near if "Did you mean" in near else ""
        raise DataError(
            f"the prompt file {name} does not exist (looked in {Path.cwd()}).{hint} Set prompts.path to a {kind} file."
        )
    return [path]
