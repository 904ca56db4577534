"""The rollout files of one worker of a run: groups written where they were made, so that no other process carries them.

A line has no ``seq`` and no step: those are in the event by which the driver records the draw, and the reader puts both
together (``history.placed``). Not thread-safe.
"""

from pathlib import Path

from stretto.store.lines import LineFile
from stretto.store.rollouts import encode_recorded, rollout_path
from stretto.types import Group

__all__ = ["WorkerRollouts"]


class WorkerRollouts:
    """Appends to ``rollouts/`` of the run in ``folder``, as worker ``name`` of one attempt."""

    def __init__(self, folder: Path, attempt: int, name: str) -> None:
        self._folder, self._attempt, self._name = folder / "rollouts", attempt, name
        self._files: dict[str, LineFile] = {}

    def write(self, phase: str, group: Group, why: str = "") -> None:
        """Append a finished group, and hand it to the operating system: it is there before anybody hears of it."""
        file = self._files.get(phase)
        if file is None:
            path = rollout_path(self._folder, phase, self._attempt, self._name)
            file = self._files[phase] = LineFile(path)
        file.append(encode_recorded(None, None, group, why))
        file.flush()

    def sync(self) -> None:
        """Wait until all of it is on disk."""
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files.values():
            file.close()
