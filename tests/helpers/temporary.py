"""A temporary folder of a test's own, so that what it leaves can be seen beside others. Its name is short, since Ray
puts sockets there and the system limits theirs."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PLACE = Path(tempfile.gettempdir()) / "st"
PLACE.mkdir(exist_ok=True)  # at once: a folder that appears beside a test would be a leftover of it


@contextmanager
def own_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go inside, also those of child processes."""
    folder = Path(tempfile.mkdtemp(prefix="", dir=PLACE))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
