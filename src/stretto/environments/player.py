"""What runs in an environment process: many episodes at a time, each call answered when it is done.

Owns what the child says; ``sessions.py`` owns the parent's side, ``serving.py`` the link. The first message in is the
environment (cloudpickle), each later one a call (pickle): its number, the episode, the verb, the argument, the seed, or
an episode to forget. Every answer is JSON: ``begun`` when the user's code is about to run, then a value or a fault. So
the parent knows which call is late, and calls that wait for their turn are not.
"""

import asyncio
import json
import pickle
import socket
from typing import Any, cast

from stretto.environments.contract import Factory, Stage, Verb
from stretto.environments.faults import Fault
from stretto.environments.serving import HEADER, open_link
from stretto.types import Json

__all__ = ["main"]

Call = tuple[int, int, Verb, object, int]


def main(link_fd: int) -> None:
    """Serve over the socket ``link_fd`` until its other end closes."""
    with open_link(link_fd) as link:
        link.setblocking(False)
        asyncio.run(_Player(link).serve())


class _Player:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        first = await self._receive()
        if first is None:
            return
        try:
            _, (factory, settings) = cast("tuple[str, tuple[Factory, dict[str, Json]]]", pickle.loads(first))
        except BaseException as error:  # noqa: BLE001 - it imports the user's modules; the parent tells
            await self._send({"id": 0, "fault": {"cause": f"{type(error).__name__}: {error}", "traceback": ""}})
            return
        await self._send({"id": 0, "value": None})
        stage = Stage(factory, settings)
        while (message := await self._receive()) is not None:
            call = cast("Call | int", pickle.loads(message))
            if isinstance(call, int):
                stage.forget(call)
                continue
            task = asyncio.create_task(self._answer(stage, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, stage: Stage, call: Call) -> None:
        id, episode, verb, argument, seed = call
        await self._send({"id": id, "begun": True})
        answer = await stage.call(episode, verb, argument, seed)
        if isinstance(answer, Fault):
            await self._send({"id": id, "fault": {"cause": answer.cause, "traceback": answer.traceback}})
        else:
            await self._send({"id": id, "value": answer})

    async def _send(self, body: dict[str, Any]) -> None:
        message = json.dumps(body, allow_nan=False).encode()
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._link, HEADER.pack(len(message)) + message)

    async def _receive(self) -> bytes | None:
        header = await self._receive_exactly(HEADER.size)
        return None if header is None else await self._receive_exactly(HEADER.unpack(header)[0])

    async def _receive_exactly(self, size: int) -> bytes | None:
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = await loop.sock_recv_into(self._link, view[got:])
            if count == 0:
                return None
            got += count
        return bytes(data)
