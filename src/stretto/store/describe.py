"""``run.json``: what a run is, written once when it is created.

Owns its fields and the look at the surroundings (versions, code state). Secrets never come here: a configuration
names them as ``env:NAME``, and that text is what is written.
"""

import os
import platform
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stretto.errors import StoreError
from stretto.store.durable import encode_json, read_json, write_durable
from stretto.types import Json

__all__ = ["CodeState", "RunInfo", "describe", "read_info", "word_for", "write_info"]

SCHEMA = 1
_PACKAGES = ("stretto", "torch", "numpy", "transformers", "tokenizers", "safetensors")
_GIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeState:
    """The git commit of the folder the run was started in. ``dirty``: it had changes; None if git took too long."""

    commit: str
    dirty: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a run is. ``config`` is the resolved recipe, ``given`` the keys of it that a workflow must read; ``steps``
    None if epochs decide; ``parent`` its origin.

    ``threads``: CPU threads of training, on which bits depend, as they do on ``machine``.
    """

    name: str
    created_s: float
    seed: int
    steps: int | None
    config: Mapping[str, Json]
    given: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    code: CodeState | None = None
    parent: str | None = None
    threads: int | None = None
    machine: str = ""
    schema: int = SCHEMA


def word_for(path: Path) -> str:
    """How a command names the run at ``path``: by name in the folder that commands look in, else by its path."""
    return path.name if path.parent.absolute() == Path("runs").absolute() else shlex.quote(str(path))


def describe(name: str, config: Mapping[str, Json], *, seed: int, steps: int | None) -> RunInfo:
    """A description of a run that starts now, here."""
    return RunInfo(
        name=name,
        created_s=time.time(),
        seed=seed,
        steps=steps,
        config=config,
        versions=_versions(),
        code=_code_state(Path.cwd()),
        machine=f"{platform.system()} {platform.machine()}",
    )


def write_info(path: Path, info: RunInfo) -> None:
    """Write ``run.json``, whole or not at all. Raises StoreError."""
    try:
        write_durable(path, (encode_json(info) + "\n").encode("ascii"))
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}. Free space or choose another runs_dir."
        ) from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be written: {error}. A configuration is finite numbers and text.") from error


def read_info(path: Path) -> RunInfo:
    """Read ``run.json``. Raises StoreError naming the file if it is missing or damaged."""
    raw = read_json(path)
    try:
        code = raw.pop("code")
        given = tuple(raw.pop("given"))
        return RunInfo(code=None if code is None else CodeState(**code), given=given, **raw)
    except (TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is not a run description of schema {SCHEMA}: {error}.") from error


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _code_state(folder: Path) -> CodeState | None:
    """None outside a git checkout, before its first commit, or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain")
    return CodeState(commit=commit.strip(), dirty=None if changes is None else bool(changes.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout
