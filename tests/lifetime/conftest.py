"""What the tests of lifetime share: a temporary folder of their own, and the command line in a working folder."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Stretto
from leftovers import nothing_left


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, also those of child processes."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def leaves_nothing(temporary: Path) -> Iterator[None]:
    """The test leaves no process, thread, file, port or shared memory."""
    with nothing_left():
        yield


@pytest.fixture
def stretto(tmp_path: Path) -> Stretto:
    """A fresh working folder."""
    return Stretto(tmp_path)
