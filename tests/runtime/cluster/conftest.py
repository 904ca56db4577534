"""Every test has temporary files of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from temporary import own_temporary


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where they are."""
    with own_temporary(monkeypatch) as folder:
        yield folder
