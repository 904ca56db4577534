"""Attempts at runs, as the tests of the driver make them: a job, a store, and what it left."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from stretto.runtime.attempt import attempt
from stretto.runtime.build import Job
from stretto.store import Event, RunSpec, RunStore, RunView


def run(job: Job, store: RunStore, observer: Callable[[Event, asyncio.Event], None] | None = None) -> RunView:
    """Run ``job`` to its end. ``observer`` is given every event, and what asks the run to stop."""

    async def main() -> None:
        stop = asyncio.Event()
        if observer is not None:
            store.subscribe(lambda event: observer(event, stop))
        await attempt(job, store, stop)

    with store:
        asyncio.run(main())
    return RunView(store.path)


def create(job: Job, folder: Path, name: str = "run") -> RunStore:
    """A store for a new run of ``job``."""
    config = job.recipe.model_dump(mode="json")
    return RunStore.create(folder, RunSpec(hint=name, name=name, config=config, seed=0, steps=job.recipe.steps))
