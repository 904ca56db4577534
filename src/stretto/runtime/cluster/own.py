"""A Ray cluster of this machine that is started for a run and ends with it, and nothing of it is left."""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

import psutil

from stretto.config.sections import RayCluster
from stretto.errors import ConfigError
from stretto.runtime.cluster.guard import PREFIX, kill_all, processes_of
from stretto.runtime.cluster.loopback import ADDRESS, on_loopback
from stretto.runtime.cluster.raying import QUIET, init
from stretto.waiting import Lane

__all__ = ["PREFIX", "OwnCluster"]

GUARD = Path(__file__).with_name("guard.py")
LATE_S = 20.0
"""How long the start of one that is given up may take to come to its end, before all of it is killed."""
SOON_S = 5.0
"""How long processes have to end that were told to, and then those that are killed."""


class OwnCluster:
    """It has a folder of its own, and a guard that ends it if this process dies."""

    def __init__(self, config: RayCluster) -> None:
        self._config = config
        self.folder: Path | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._lane = Lane("stretto-cluster")  # the system ends Ray's processes with the thread that started them
        self._up: Future[None] | None = None

    async def start(self) -> None:
        """Start it. ConfigError with the reason, or if it is not up in time."""
        folder = self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._guard = subprocess.Popen(
            [sys.executable, str(GUARD)], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self._tell_guard(str(folder))
        self._up = self._lane.submit(lambda: self._init(folder))
        limit_s = self._config.start_timeout_s
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._up), limit_s)
        except TimeoutError:
            raise ConfigError(
                f"the Ray cluster was not up here after {limit_s:g} s. Look at the machine's load, raise "
                "cluster.start_timeout_s, or set cluster.address to one that runs."
            ) from None
        made = [(process.pid, process.create_time()) for process in processes_of(str(folder))]
        self._tell_guard(json.dumps(made))

    def close(self) -> None:
        """End it and all its processes, and remove its folder."""
        import ray  # an extra: only who asks for a cluster needs it

        if self.folder is None:
            return
        folder = str(self.folder)
        if self._up is not None:
            wait([self._up], timeout=LATE_S)  # killed while it starts, Ray waits for minutes for what is gone
        here = list(processes_of(folder))
        ray.shutdown()
        psutil.wait_procs(here, timeout=SOON_S)
        deadline = time.monotonic() + SOON_S
        while (left := list(processes_of(folder))) and time.monotonic() < deadline:
            kill_all(left)
            psutil.wait_procs(left, timeout=1.0)
        shutil.rmtree(folder, ignore_errors=True)
        self._lane.close()
        if self._guard is not None:
            self._tell_guard("done")
            assert self._guard.stdin is not None
            with suppress(BrokenPipeError):
                self._guard.stdin.close()
            self._guard.wait(timeout=SOON_S)

    def _init(self, folder: Path) -> None:
        store = None if self._config.object_store is None else int(self._config.object_store)
        settings = {**QUIET, "include_dashboard": False, "_node_ip_address": ADDRESS, "_temp_dir": str(folder)}
        with on_loopback():
            init({**settings, "address": "local", "object_store_memory": store}, "could not be started here")

    def _tell_guard(self, line: str) -> None:
        assert self._guard is not None and self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.write(f"{line}\n")
            self._guard.stdin.flush()
