"""A Ray cluster for a run: one of this machine that is started and ends with the run, or one that is joined and stays.

Owns its start and its end, and the actors that are made in it. Nothing here knows what an actor does.
"""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import psutil

from stretto.config.sections import RayCluster
from stretto.errors import ConfigError, RunError
from stretto.runtime.disposer import Disposer

__all__ = ["Cluster", "open_cluster"]

T = TypeVar("T")
GUARD = Path(__file__).with_name("guard.py")
ROOM = 1000
"""Calls that an actor may have under way: draws wait in the engine, not before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that is up. ``start_timeout_s``: what a worker has to come up. ``folder``: a folder that goes with it,
    if all of it is on this machine."""

    start_timeout_s: float
    folder: Path | None = None

    async def make(self, kind: type, args: Sequence[Any]) -> Any:
        """An actor of ``kind``; that it was asked for, not that it is up."""
        import ray

        # A worker finds what this process finds: Stretto from its source, and the user's modules.
        places = [str(Path(__file__).parents[3]), *(place or os.getcwd() for place in sys.path)]
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
        made: Any = ray.remote(kind)
        options = made.options(num_cpus=0, max_concurrency=ROOM, max_restarts=0, runtime_env={"env_vars": variables})
        return options.remote(*args)

    async def within(self, name: str, up: Awaitable[T]) -> T:
        """What ``up`` gives, which says that worker ``name`` is up. RunError if it does not in time."""
        try:
            return await asyncio.wait_for(up, self.start_timeout_s)
        except TimeoutError:
            raise RunError(
                f"{name} was not up after {self.start_timeout_s:g} s. Look at the cluster's load, or raise "
                "cluster.start_timeout_s."
            ) from None


async def open_cluster(config: RayCluster, disposer: Disposer) -> Cluster:
    """Start a cluster on this machine, or join the one at ``config.address``. ConfigError if Ray is not installed, or
    nothing answers there."""
    if find_spec("ray") is None:
        raise ConfigError(
            "cluster.type=ray needs the package ray, which is not installed. Install stretto[ray], or set "
            "cluster.type=local."
        )
    logging.getLogger("ray").setLevel(logging.ERROR)  # what it tells beside errors is about itself
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if config.address is not None:
        joined = _JoinedCluster()
        disposer.own("the cluster", joined, joined.close, deadline_s=30.0)
        await asyncio.to_thread(joined.start, {**settings, "address": config.address})
    else:
        settings |= {
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "object_store_memory": None if config.object_store is None else int(config.object_store),
        }
        own = _OwnCluster()
        disposer.own("the cluster", own, own.close, deadline_s=30.0)
        await asyncio.to_thread(own.start, settings)
        return Cluster(start_timeout_s=config.start_timeout_s, folder=own.folder)
    return Cluster(start_timeout_s=config.start_timeout_s)


class _JoinedCluster:
    """A cluster that was there before, and stays."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """Join it. ConfigError with the reason."""
        _init(settings, f"at {settings['address']} cannot be joined")

    def close(self) -> None:
        """Leave it."""
        import ray

        ray.shutdown()


class _OwnCluster:
    """A cluster of this machine, with a folder of its own and a guard that ends it if this process dies."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._guard: subprocess.Popen[str] | None = None

    def start(self, settings: Mapping[str, Any]) -> None:
        """Start it. ConfigError with the reason."""
        folder = self.folder = Path(tempfile.mkdtemp(prefix="stretto-ray-"))
        guard = self._guard = subprocess.Popen(
            [sys.executable, str(GUARD)], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        before = set(psutil.Process().children(recursive=True))
        _init({**settings, "_temp_dir": str(folder)}, "could not be started here")
        made = [process for process in psutil.Process().children(recursive=True) if process not in before]
        known = {"processes": [(p.pid, p.create_time()) for p in made], "folder": str(folder)}
        assert guard.stdin is not None
        guard.stdin.write(f"{json.dumps(known)}\n")
        guard.stdin.flush()

    def close(self) -> None:
        """End it and all its processes, and remove its folder."""
        import ray

        here = psutil.Process().children(recursive=True)
        ray.shutdown()
        theirs = [process for process in here if self.folder is not None and _is_of(process, self.folder)]
        _, left = psutil.wait_procs(theirs, timeout=5.0)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=5.0)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):
                self._guard.stdin.write("done\n")
                self._guard.stdin.close()
            self._guard.wait(timeout=5.0)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    """Whether it is one of the cluster's: they are told its folder, or named after Ray."""
    try:
        said = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    return str(folder) in said or said.startswith("ray::")


def _init(settings: Mapping[str, Any], failed: str) -> None:
    import ray

    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ConfigError(f"the Ray cluster {failed}: {error}. Set cluster.address to one that runs.") from error
