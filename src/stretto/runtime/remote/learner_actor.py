"""What runs in the process of a rank that trains: a ``Worker``, and the sending of its weights.

Every call is made on every rank, in one order; the thread that runs it is the worker's own, so that a call may wait for
other ranks while the process goes on answering.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.config.backends import FakeBackendConfig
from stretto.roles import DataPlane, TrainBackend
from stretto.runtime.build import Job
from stretto.runtime.opening import open_backend
from stretto.runtime.remote.workers import Doing
from stretto.runtime.worker import Worker
from stretto.waiting import in_thread

__all__ = ["LearnerActor"]


class LearnerActor:
    """Rank ``rank`` of ``size``."""

    def __init__(self, job: Job, rank: int, size: int, plane: DataPlane) -> None:
        self._job, self._rank, self._size = job, rank, size
        self._store: Any = None
        self._worker = Worker(job.phases, plane, leads=rank == 0)

    async def host_meeting(self) -> str:
        """Listen for the other ranks; where."""
        from stretto.backends.torch.world import host_meeting  # loads torch

        self._store, place = await in_thread(host_meeting, "stretto-meeting")
        return place

    async def open(self, place: str) -> None:
        """Make this rank's part of the Models, after meeting the other ranks at ``place``."""
        await self._worker.open(lambda: self._models(place))

    async def call(self, asked: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> Any:
        """``function(worker, ...)``; what it gives, of rank 0."""
        function, args, kwargs = asked
        result = await self._worker.call(function, self._worker, *args, **kwargs)
        return result if self._rank == 0 else None

    async def write_state(self, folder: Path) -> None:
        """Write this rank's part of the state that was last taken, beside what goes on."""
        await in_thread(lambda: self._worker.write_state(folder), "stretto-saving")

    async def doing(self) -> Doing:
        """That it is there, and what its thread does."""
        return Doing(what=self._worker.doing, pid=os.getpid())

    async def close(self) -> None:
        """Free the Models, and leave the other ranks. Idempotent."""
        await in_thread(self._worker.close, "stretto-close")

    def _models(self, place: str) -> TrainBackend:
        """This rank's part, made on the worker's thread."""
        if self._size == 1 or isinstance(self._job.recipe.backend, FakeBackendConfig):
            return open_backend(self._job)
        from stretto.backends.torch.world import open_world  # loads torch

        world = open_world(self._rank, self._size, place, self._job.recipe.backend.device, self._store)
        replicas = self._job.recipe.placement.replicas
        return open_backend(self._job, world.ranks(replicas, self._size // replicas))
