"""Writing checkpoints on a thread of its own, one at a time, while the run goes on."""

import asyncio
from functools import partial

from stretto.config.sections import SaveConfig
from stretto.runtime.checkpoint import Captured
from stretto.store import Checkpoint, Header, RunStore
from stretto.waiting import in_thread

__all__ = ["Saving"]


class Saving:
    """At most one checkpoint is under way. That it failed is said when the next begins, or at the end."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._task: asyncio.Task[Checkpoint] | None = None

    def begin(self, header: Header, captured: Captured, keep: SaveConfig, seq: int) -> None:
        """Write it. ``seq``: the newest event that it vouches for."""
        assert self._task is None, "finish the checkpoint before it first"
        write = partial(
            self._store.checkpoint,
            header,
            captured.write,
            keep_last=keep.keep_last,
            keep_best=keep.keep_best,
            seq=seq,
        )
        self._task = asyncio.ensure_future(in_thread(write, "stretto-saving"))

    async def finish(self) -> None:
        """Wait until what was begun is on disk. Raises what kept it from there, once."""
        if self._task is None:
            return
        try:
            await asyncio.shield(self._task)
        finally:
            if self._task.done():
                self._task = None
