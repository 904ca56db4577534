"""How engine and learner share the cores of this machine.

With ``schedule.max_staleness=1`` both compute at the same time. Threads beyond the cores wait for each other by
spinning, which can make a run many times slower than one thread each.
"""

import os

import psutil

from stretto.config.backends import FakeBackendConfig
from stretto.config.recipe import Recipe
from stretto.config.rollouts import NativeEngineConfig
from stretto.config.sections import RayCluster

__all__ = ["threads_of", "told_threads", "usable_cores"]


def usable_cores() -> int:
    """Physical cores, or fewer if this process may not run on all."""
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    # Not every system knows on which cores a process may run.
    return min(physical, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else physical


def threads_of(recipe: Recipe, cores: int | None = None) -> int | None:
    """The intra-op threads the learner will use, on which bits depend; None if it computes nothing.

    ``backend.threads``, or for 0 one per core (``cores``: those of this machine), less those of an engine that computes
    at the same time on the same cores. Workers in processes of their own share the cores evenly, at least 1 each.
    """
    if isinstance(recipe.backend, FakeBackendConfig):
        return None
    cores = cores or usable_cores()
    if isinstance(recipe.cluster, RayCluster):  # workers compute at the same time, and one host may have all of them
        return recipe.backend.threads or max(1, cores // (recipe.placement.learners + recipe.placement.rollers))
    beside = _engine_threads(recipe) if _at_once(recipe) else 0
    return recipe.backend.threads or max(1, cores - beside)


def told_threads(recipe: Recipe, cores: int | None = None) -> list[str]:
    """For ``check``: who uses how many of the cores, and what to do if that is more than there are."""
    cores = cores or usable_cores()
    engine, training = _engine_threads(recipe), threads_of(recipe, cores)
    if training is None or not engine:
        return []
    how = f"at the same time (max_staleness {recipe.schedule.most_staleness})" if _at_once(recipe) else "in turns"
    there = f"{cores} core{'s' if cores > 1 else ''}"
    lines = [f"threads: {engine} of the engine, {training} of training, {how}, on {there}"]
    used = engine + training if _at_once(recipe) else max(engine, training)
    if used > cores:
        remedy = _remedy(used, cores)
        lines.append(f"  more threads than cores: they wait for each other, which can be many times slower. {remedy}")
    return lines


def _engine_threads(recipe: Recipe) -> int:
    """Threads that the engine computes with on cores, 0 if it does not."""
    engine = recipe.engine
    return engine.threads if isinstance(engine, NativeEngineConfig) and engine.device == "cpu" else 0


def _at_once(recipe: Recipe) -> bool:
    """Whether rollout and training compute at the same time on the same cores."""
    on_cores = getattr(recipe.backend, "device", "") == "cpu" and _engine_threads(recipe) > 0
    return on_cores and recipe.schedule.most_staleness > 0


def _remedy(used: int, cores: int) -> str:
    if cores == 1 and used == 2:
        return "Set schedule.max_staleness=0: one core cannot do both at the same time."
    return f"Set backend.threads and engine.threads to no more than {cores} together."
