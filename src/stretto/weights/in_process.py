"""Weights from the trainer to engines of the same process: every tensor is handed over, and each engine copies it.

Owns the window and the handshake. That an engine computes what the trainer computes is not shown here: fused or cast
copies have other bytes, so log-probs are compared elsewhere.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack

import numpy as np
import torch
import xxhash

from stretto.errors import EngineError
from stretto.roles import InFlight, NamedTensor, RolloutEngine, WeightSink
from stretto.types import Metric, Metrics

__all__ = ["InProcessSync"]


class InProcessSync:
    """Implements ``stretto.roles.WeightSync``."""

    def __init__(self, run: Callable[[Callable[[], int]], Awaitable[int]] | None = None) -> None:
        """``run`` calls a function on the thread that owns the tensors; None: where ``publish`` is awaited.

        Copies on a thread whose number of intra-op threads nobody has set would spin on other threads' cores.
        """
        self._run = run or _here
        self._checksum = ""

    @property
    def checksum(self) -> str:
        """The 64-bit xxh3 (hex) of the names and bytes last sent; empty before the first publication."""
        return self._checksum

    async def publish(
        self,
        version: int,
        tensors: Iterable[NamedTensor],
        engines: Sequence[RolloutEngine],
        *,
        in_flight: InFlight = "drain",
        clear: Sequence[str] = (),
    ) -> Metrics:
        """One window over all ``engines``: drain them or pause what is in flight, clear what matches ``clear``, write
        every tensor to each, leave, check that each says ``version``.

        Gives ``time/publish_s`` and ``publish/bytes``. Raises EngineError, with the cause, if a tensor is refused or an
        engine stands elsewhere afterwards.
        """
        start = time.perf_counter()
        digest = xxhash.xxh3_64()
        try:
            async with AsyncExitStack() as windows:
                sinks = [
                    await windows.enter_async_context(engine.update_weights(version, in_flight=in_flight))
                    for engine in engines
                ]
                num_bytes = await self._run(lambda: _send(tensors, sinks, digest, clear))
        except (EngineError, RuntimeError, OSError) as error:
            raise EngineError(f"publishing version {version} of the weights failed: {error}") from error
        await _check_held(version, engines)
        self._checksum = digest.hexdigest()
        return {
            "time/publish_s": Metric("mean", time.perf_counter() - start),
            "publish/bytes": Metric("mean", num_bytes),
        }


def _send(
    tensors: Iterable[NamedTensor], sinks: Sequence[WeightSink], digest: xxhash.xxh3_64, clear: Sequence[str]
) -> int:
    num_bytes = 0
    for sink in sinks if clear else ():
        sink.clear(clear)
    for tensor in tensors:
        raw = _bytes(tensor)
        digest.update(tensor.name.encode())
        digest.update(raw)
        num_bytes += raw.nbytes
        for sink in sinks:
            sink.write(tensor)
    return num_bytes


async def _here(function: Callable[[], int]) -> int:
    return function()


def _bytes(tensor: NamedTensor) -> memoryview:
    data = tensor.data
    if isinstance(data, torch.Tensor):
        # numpy knows no bfloat16; bytes are bytes.
        data = data.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(data).reshape(-1).data.cast("B")


async def _check_held(version: int, engines: Sequence[RolloutEngine]) -> None:
    for place, engine in enumerate(engines):
        status = await engine.status()
        if status.version != version or not status.healthy:
            state = "healthy" if status.healthy else "unhealthy"
            raise EngineError(
                f"engine {place} holds version {status.version} ({state}) after version {version} was published. "
                "Its weights cannot be trusted: restart the engine."
            )
