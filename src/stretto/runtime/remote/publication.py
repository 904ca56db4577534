"""Weights from ranks that train to rollers in other processes: buckets through the object store, one after the other.

    every roller opens its window ──▶ the ranks walk over the tensors together; rank 0 fills buckets, puts each into the
    store and names it to every roller, which writes it into its engine ──▶ every roller closes its window

On one host a bucket is shared memory; to others Ray carries it, once a host. A few are under way at a time, so nobody
holds the model twice.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from stretto.errors import EngineError
from stretto.roles import EngineStatus, InFlight
from stretto.runtime.fleet import Fleet
from stretto.runtime.remote.handles import RemoteLearners, RemoteRoller
from stretto.runtime.worker import Worker
from stretto.types import Metric, Metrics
from stretto.weights.buckets import fill_buckets

__all__ = ["BucketPublication"]

AT_ONCE = 2
"""Buckets under way: one is filled while the one before is written."""


class BucketPublication:
    """Implements ``Publication`` from learners elsewhere to rollers elsewhere."""

    def __init__(self, learners: RemoteLearners) -> None:
        self._learners = learners

    async def publish(
        self, version: int, fleet: Fleet, *, in_flight: InFlight = "drain", clear: Sequence[str] = ()
    ) -> Metrics:
        """As ``Publication`` says. Raises EngineError, with the cause, if a weight is refused or an engine stands
        elsewhere afterwards."""
        start = time.perf_counter()
        rollers = [roller for roller in fleet.rollers if isinstance(roller, RemoteRoller)]
        try:
            await _all([roller.open_window(version, in_flight, clear) for roller in rollers])
            try:
                num_bytes = await self._learners.call(send_buckets, [roller.actor for roller in rollers])
            except BaseException as failure:
                why = f"publishing version {version} failed: {failure}"
                await asyncio.gather(*(roller.close_window(why) for roller in rollers), return_exceptions=True)
                raise
            found = await _all([roller.close_window() for roller in rollers])
        except (EngineError, RayError, RuntimeError, OSError) as error:
            raise EngineError(f"publishing version {version} of the weights failed: {error}") from error
        for roller, status in zip(rollers, found, strict=True):
            _check_held(version, roller.name, status)
        return {
            "time/publish_s": Metric("mean", time.perf_counter() - start),
            "publish/bytes": Metric("mean", num_bytes),
        }


def send_buckets(worker: Worker, rollers: Sequence[Any]) -> int:
    """Send the policy's weights to ``rollers``: all ranks take part, rank 0 sends. How many bytes that were."""
    if not worker.writes_groups:
        for _ in worker.models.tensors("policy"):
            pass
        return 0
    under_way: list[list[Any]] = []
    total = 0
    for bucket, data in fill_buckets(worker.models.tensors("policy")):
        total += sum(placed.num_bytes for placed in bucket.tensors)
        place = ray.put(data)
        under_way.append([roller.take.remote(bucket, place) for roller in rollers])
        if len(under_way) == AT_ONCE:
            ray.get(under_way.pop(0))
    for replies in under_way:
        ray.get(replies)
    return total


async def _all(calls: Sequence[Any]) -> list[Any]:
    """The results of all; what the first of those that failed raised, once all have ended."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def _check_held(version: int, name: str, status: EngineStatus) -> None:
    if status.version != version or not status.healthy:
        state = "healthy" if status.healthy else "unhealthy"
        raise EngineError(
            f"{name} holds version {status.version} ({state}) after version {version} was published. "
            "Its weights cannot be trusted: restart the engine."
        )
