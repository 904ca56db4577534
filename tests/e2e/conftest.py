"""A working folder in which ``stretto`` runs in processes of its own."""

from pathlib import Path

import pytest
from command_line import Stretto


@pytest.fixture
def stretto(tmp_path: Path) -> Stretto:
    """A fresh working folder."""
    return Stretto(tmp_path)
