"""A Ray cluster that was there before and stays: it is asked whether it answers, then joined, and left."""

import asyncio
import socket
import sys
from collections.abc import Mapping
from typing import Any

from stretto.config.sections import RayCluster
from stretto.errors import ConfigError
from stretto.runtime.cluster.raying import QUIET, REMEDY, init, reason_of
from stretto.waiting import in_thread

__all__ = ["JoinedCluster"]

KNOCK_S = 5.0
"""How long a port may take to accept a connection."""
ASK = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False); print('joined')"


class JoinedCluster:
    """The one at ``config.address``."""

    def __init__(self, config: RayCluster) -> None:
        assert config.address is not None
        self._address, self._limit_s = config.address, config.start_timeout_s

    async def start(self) -> None:
        """Join it. ConfigError with the reason, or if it does not answer in time.

        Whoever asks Ray to join what does not answer waits for minutes and cannot be stopped, so it is asked first by a
        process that can be ended.
        """
        if self._address != "auto":
            await in_thread(self._knock, "stretto-knock")
        try:
            async with asyncio.timeout(self._limit_s):
                await self._ask()
                settings: Mapping[str, Any] = {**QUIET, "address": self._address}
                await in_thread(lambda: init(settings, self._failed), "stretto-cluster")
        except TimeoutError:
            raise ConfigError(
                f"the Ray cluster {self._failed}: it did not answer as Ray does within {self._limit_s:g} s. Look "
                "whether that is Ray's port and version, or raise cluster.start_timeout_s."
            ) from None

    def close(self) -> None:
        """Leave it."""
        import ray  # an extra: only who asks for a cluster needs it

        ray.shutdown()

    @property
    def _failed(self) -> str:
        return f"at {self._address} cannot be joined"

    def _knock(self) -> None:
        """Whether anything listens there. ConfigError if not."""
        host, _, port = self._address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(
                f"cluster.address is host:port, or auto, and not {self._address!r}. `ray status` tells it, or leave it "
                "out and a cluster is started here."
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), min(KNOCK_S, self._limit_s)).close()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"the Ray cluster {self._failed}: {reason.lower()}. {REMEDY}") from error

    async def _ask(self) -> None:
        """Join it in another process. ConfigError with what was said there last, if that fails."""
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ASK, self._address), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            said, complained = await asking.communicate()
        finally:
            if asking.returncode is None:
                asking.kill()
                await asking.wait()
        if b"joined" not in said:
            lines = [line for line in complained.decode(errors="replace").splitlines() if line.strip()]
            last = lines[-1].partition(": ")[2] if lines else ""
            raise ConfigError(f"the Ray cluster {self._failed}: {reason_of(last)}. {REMEDY}")
