"""A Ray cluster for a run: one of this machine that is started and ends with the run, or one that is joined and stays.

Owns its start and its end, and the actors that are made in it. Nothing here knows what an actor does.
"""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stretto.config.sections import RayCluster
from stretto.errors import ConfigError, RunError
from stretto.runtime.disposer import Disposer

__all__ = ["Cluster", "open_cluster"]

T = TypeVar("T")
ROOM = 1000
"""Calls that an actor may have under way: draws wait in the engine, not before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that is up. ``start_timeout_s``: what a worker has to come up."""

    start_timeout_s: float

    async def start(
        self, name: str, kind: type, args: Sequence[Any], disposer: Disposer, *, close: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """An actor of ``kind``, owned by ``disposer``: ``close`` asks it to end in order, then its process is killed.
        RunError if it is not up in time."""
        import ray

        # A worker finds what this process finds: Stretto from its source, and the user's modules.
        places = [str(Path(__file__).parents[3]), *(place or os.getcwd() for place in sys.path)]
        path = os.pathsep.join(dict.fromkeys(places))
        actor: Any = (
            ray.remote(kind)
            .options(
                num_cpus=0,
                max_concurrency=ROOM,
                max_restarts=0,
                runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}},
            )
            .remote(*args)
        )

        async def end() -> None:
            try:
                await close(actor)
            finally:
                ray.kill(actor)

        disposer.own(name, actor, end, deadline_s=30.0)
        try:
            await asyncio.wait_for(_up(actor), self.start_timeout_s)
        except TimeoutError:
            raise RunError(
                f"{name} was not up after {self.start_timeout_s:g} s. Look at the cluster's load, or raise "
                "cluster.start_timeout_s."
            ) from None
        return actor


async def _up(actor: Any) -> None:
    await actor.__ray_ready__.remote()


async def open_cluster(config: RayCluster, disposer: Disposer) -> Cluster:
    """Start a cluster on this machine, or join the one at ``config.address``. ConfigError if Ray is not installed, or
    nothing answers there."""
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "cluster.type=ray needs the package ray, which is not installed. Install stretto[ray], or set "
            "cluster.type=local."
        ) from None
    logging.getLogger("ray").setLevel(logging.ERROR)  # what it tells beside errors is about itself
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if config.address is not None:
        settings["address"] = config.address
    else:
        folder = tempfile.mkdtemp(prefix="stretto-ray-")
        disposer.own("the cluster's files", folder, lambda: shutil.rmtree(folder, ignore_errors=True))
        settings |= {
            "_temp_dir": folder,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "object_store_memory": None if config.object_store is None else int(config.object_store),
        }
    try:
        await asyncio.to_thread(lambda: ray.init(**settings))
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        where = "could not be started here" if config.address is None else f"at {config.address} cannot be joined"
        raise ConfigError(f"the Ray cluster {where}: {error}. Set cluster.address to one that runs.") from error
    disposer.own("the cluster", None, ray.shutdown, deadline_s=30.0)
    return Cluster(start_timeout_s=config.start_timeout_s)
