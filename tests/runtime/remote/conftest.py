"""A temporary folder of each test's own, so that what it leaves can be seen beside others. Its name is short, since Ray
puts sockets there and the system limits theirs."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go, also those of child processes."""
    folder = Path(tempfile.mkdtemp(prefix="s-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)
