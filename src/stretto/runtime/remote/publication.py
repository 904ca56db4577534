"""Weights from ranks that train to rollers in other processes: buckets through the object store, one after the other.

    every roller opens its window ──▶ the ranks walk over the tensors together; rank 0 fills buckets, puts each into the
    store and names it to every roller, which writes it into its engine ──▶ every roller closes its window

On one host a bucket is shared memory; to others Ray carries it, once a host. A few are under way at a time, so nobody
holds the model twice.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from stretto.errors import EngineError, WorkerLost
from stretto.roles import EngineStatus, InFlight
from stretto.runtime.fleet import Fleet
from stretto.runtime.remote.handles import RemoteLearners, RemoteRoller
from stretto.runtime.remote.workers import cause_of
from stretto.runtime.roller import Rolling
from stretto.runtime.worker import Worker
from stretto.types import Metric, Metrics
from stretto.weights.buckets import fill_buckets

__all__ = ["BucketPublication"]

T = TypeVar("T")
AT_ONCE = 2
"""Buckets under way: one is filled while the one before is written."""


class BucketPublication:
    """Implements ``Publication`` from learners elsewhere to rollers elsewhere. A roller that is lost on the way is told
    to its fleet; the others get the weights."""

    def __init__(self, learners: RemoteLearners) -> None:
        self._learners = learners
        self._held: int | None = None

    def changing(self) -> None:
        """As ``Publication`` says."""
        self._held = None

    async def publish(
        self, version: int, fleet: Fleet, *, in_flight: InFlight = "drain", clear: Sequence[str] = ()
    ) -> Metrics:
        """As ``Publication`` says. Raises EngineError, with the cause, if a weight is refused or an engine stands
        elsewhere afterwards."""
        start = time.perf_counter()
        rollers = [roller for roller in fleet.rollers if isinstance(roller, RemoteRoller)]
        num_bytes = await self._send(version, rollers, fleet, in_flight, clear)
        self._held = version
        fleet.published()
        return {
            "time/publish_s": Metric("mean", time.perf_counter() - start),
            "publish/bytes": Metric("mean", num_bytes),
        }

    async def renew(self, roller: Rolling) -> bool:
        """Give a roller that was started again the weights that the others hold; False if the learners have changed
        them since."""
        assert isinstance(roller, RemoteRoller)
        version = self._held
        if version is None:
            return False
        await roller.open_window(version, "drain", ())
        if self._held != version:  # a step was asked for meanwhile, and the ranks take calls in order
            await roller.close_window("the weights changed")
            return False
        await self._learners.call(send_buckets, [roller.worker.actor])
        _check_held(version, roller.worker.name, await roller.close_window())
        return True

    async def _send(
        self, version: int, rollers: Sequence[RemoteRoller], fleet: Fleet, in_flight: InFlight, clear: Sequence[str]
    ) -> int:
        try:
            opened = await _those_there(rollers, fleet, lambda roller: roller.open_window(version, in_flight, clear))
            there = [roller for roller, _ in opened]
            try:
                num_bytes, gone = await self._learners.call(send_buckets, [roller.worker.actor for roller in there])
            except BaseException as failure:
                why = f"publishing version {version} failed: {failure}"
                await asyncio.gather(*(roller.close_window(why) for roller in there), return_exceptions=True)
                raise
            rest = [roller for place, roller in enumerate(there) if place not in gone]
            found = await _those_there(rest, fleet, lambda roller: roller.close_window())
            for place in gone:
                fleet.lost(there[place], WorkerLost(f"{there[place].worker.name} was lost while it took weights"))
        except (EngineError, RayError, RuntimeError, OSError) as error:
            raise EngineError(f"publishing version {version} of the weights failed: {error}") from error
        if not found:
            raise WorkerLost(f"every roller was lost while version {version} of the weights was published")
        for roller, status in found:
            _check_held(version, roller.worker.name, status)
        return num_bytes


def send_buckets(worker: Worker, rollers: Sequence[Any]) -> tuple[int, tuple[int, ...]]:
    """Send the policy's weights to ``rollers``: all ranks take part, rank 0 sends. How many bytes that were, and the
    places of rollers that are gone."""
    if not worker.leads:
        for _ in worker.models.tensors("policy"):
            pass
        return 0, ()
    under_way: list[dict[int, Any]] = []
    gone: set[int] = set()
    total = 0
    for bucket, data in fill_buckets(worker.models.tensors("policy")):
        total += sum(placed.num_bytes for placed in bucket.tensors)
        place = ray.put(data)
        under_way.append({n: r.take.remote(bucket, place) for n, r in enumerate(rollers) if n not in gone})
        if len(under_way) == AT_ONCE:
            gone |= _gone(under_way.pop(0))
    for replies in under_way:
        gone |= _gone(replies)
    return total, tuple(sorted(gone))


def _gone(replies: Mapping[int, Any]) -> set[int]:
    """Wait for what rollers reply. The places of those that do not any more."""
    gone: set[int] = set()
    for place, reply in replies.items():
        try:
            ray.get(reply)
        except RayTaskError as error:
            raise cause_of(error) from None
        except RayActorError:
            gone.add(place)
    return gone


async def _those_there(
    rollers: Sequence[RemoteRoller], fleet: Fleet, call: Callable[[RemoteRoller], Awaitable[T]]
) -> list[tuple[RemoteRoller, T]]:
    """What each gives, of those that are not lost on the way. What the first that failed otherwise raised, once all
    have ended."""
    found = await asyncio.gather(*(call(roller) for roller in rollers), return_exceptions=True)
    there: list[tuple[RemoteRoller, T]] = []
    for roller, result in zip(rollers, found, strict=True):
        if isinstance(result, WorkerLost):
            fleet.lost(roller, result)
        elif isinstance(result, BaseException):
            raise result
        else:
            there.append((roller, result))
    return there


def _check_held(version: int, name: str, status: EngineStatus) -> None:
    if status.version != version or not status.healthy:
        state = "healthy" if status.healthy else "unhealthy"
        raise EngineError(
            f"{name} holds version {status.version} ({state}) after version {version} was published. "
            "Its weights cannot be trusted: restart the engine."
        )
