"""Runs ``stretto`` as a user does: in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SHORT = Path(__file__).parent / "short.yaml"


class Stretto:
    """The command line in a working folder. ``short`` is a recipe that runs in about two seconds."""

    short = str(SHORT)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "stretto", *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        """Run a command to its end; its stdout and stderr."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == status, f"exit {process.returncode}\n{out}\n{err}"
        return out, err

    def train(self, name: str, overrides: Sequence[str] = ()) -> Path:
        """Train the short recipe as run ``name``."""
        self.run("train", self.short, f"name={name}", *overrides)
        return self.folder / "runs" / name


@pytest.fixture
def stretto(tmp_path: Path) -> Stretto:
    """A fresh working folder."""
    return Stretto(tmp_path)
