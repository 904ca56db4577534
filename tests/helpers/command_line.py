"""``stretto`` as a user runs it: in processes of their own. ``Stretto`` is a working folder with the command line."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

SHORT = Path(__file__).parents[1] / "e2e" / "short.yaml"


class Stretto:
    """The command line in a working folder. ``short`` is a recipe that runs in about two seconds."""

    short = str(SHORT)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command."""
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


def wait_until(process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    """Wait while ``process`` runs until something is there."""
    while process.poll() is None:
        if there():
            return
        time.sleep(0.005)
    raise AssertionError(process.communicate())


def wait_for_step(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Wait until a step of the main phase is recorded."""
    events = run / "events.jsonl"
    wait_until(process, lambda: events.exists() and f'"phase":"main","step":{step},' in events.read_text())
