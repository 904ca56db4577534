"""One attempt at a run: start-up, phases from a position to the end, and an orderly way out, whatever happens.

Start-up order: reward processes, worker and Models, engine, checkpoint, first publication (the driver's), admission.
Everything is undone in reverse if a later stage fails.
"""

import asyncio
from pathlib import Path

from stretto.config.sections import LocalCluster
from stretto.errors import ConfigError, Interrupted, RewardError, noting
from stretto.memory import tuned_memory
from stretto.runtime.build import Job
from stretto.runtime.checkpoint import Position, position_after
from stretto.runtime.disposer import Disposer
from stretto.runtime.driver import Driver
from stretto.runtime.evaluation import EvalResult, evaluate
from stretto.runtime.learning import load_state
from stretto.runtime.opening import open_parts
from stretto.runtime.parts import Parts
from stretto.runtime.recording import Recorder
from stretto.store import Checkpoint, ErrorBody, RunStore, word_for
from stretto.waiting import unless_stopped

__all__ = ["EXPORT", "attempt", "evaluate_only"]

EXPORT = "model"
"""The folder of a run in which what it trained lies as an ordinary Hugging Face folder once the run is done."""


async def attempt(job: Job, store: RunStore, stop: asyncio.Event) -> None:
    """Run ``job`` from the checkpoint that ``store`` found (or from the start), and record how it ended."""
    told = (
        "Stopped by a signal during start-up, before anything was trained. "
        f"Go on with `stretto resume {word_for(store.path)}`."
    )
    try:
        async with Disposer() as disposer:
            parts, at = await unless_stopped(_start(job, store, disposer), stop, told)
            recorder = Recorder(store, parts.plane)
            driver = Driver(job, parts, recorder, stop)
            with tuned_memory():
                await driver.run(at)
            await parts.export(job.exports, store.path / EXPORT)
    except BaseException as failure:
        if isinstance(failure, RewardError):
            failure.args = (f"{failure} Then go on with {_resume_of(job, store)}.",)
        _record_end(store, failure)
        raise
    store.end("done")


async def evaluate_only(job: Job, checkpoint: Checkpoint | None) -> dict[str, EvalResult]:
    """Evaluate the policy of a checkpoint, or of the recipe's model, on the sets of the main phase, by name.

    Records nothing.
    """
    sets = job.phases[-1].sets
    if not sets:
        raise ConfigError(
            "there is nothing to evaluate on: prompts.held_out=0 and evaluate.sets is empty. Set prompts.held_out=0.2, "
            "or name prompts in evaluate.sets."
        )
    async with Disposer() as disposer:
        parts = await _open(job, disposer, None, trains=False)
        if checkpoint is not None:
            await parts.learners.call(load_state, checkpoint.path, {})
        await parts.publish(0)
        with tuned_memory():
            return {eval_set.name: await evaluate(parts, eval_set) for eval_set in sets}


async def _start(job: Job, store: RunStore, disposer: Disposer) -> tuple[Parts, Position]:
    parts = await _open(job, disposer, (store.path, store.attempt))
    return parts, await _restore(parts, job, store.found.taken)


async def _open(job: Job, disposer: Disposer, place: tuple[Path, int] | None, *, trains: bool = True) -> Parts:
    """The parts of a run in this process or on a cluster, as the recipe says."""
    if isinstance(job.recipe.cluster, LocalCluster):
        return await open_parts(job, disposer, trains=trains)
    # Ray is an extra, and only who asks for it needs it.
    from stretto.runtime.remote.opening import open_remote_parts

    return await open_remote_parts(job, disposer, place, trains=trains)


def _record_end(store: RunStore, failure: BaseException) -> None:
    """That the attempt failed, or was stopped, and why."""
    if isinstance(failure, Interrupted):
        with noting(failure, "recording the end"):
            store.end("interrupted", str(failure))
        return
    with noting(failure, "recording the failure"):
        store.event(ErrorBody.of(failure, "run"))
    with noting(failure, "recording the end"):
        store.end("failed", f"{type(failure).__name__}: {failure}")


def _resume_of(job: Job, store: RunStore) -> str:
    """How the run goes on once its reward is mended."""
    if (job.recipe.reward.use or "").startswith("python:"):
        return f"stretto.resume({store.path.name!r}, reward=...)"
    return f"`stretto resume {word_for(store.path)}`"


async def _restore(parts: Parts, job: Job, checkpoint: Checkpoint | None) -> Position:
    if checkpoint is None:
        return Position()
    at = position_after(checkpoint, job, parts.plane)
    await parts.learners.call(load_state, checkpoint.path, at.memory)
    return at
