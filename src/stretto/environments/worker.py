"""What runs in a reward process: read a group, call the reward, write its scores, until the parent is gone.

Owns what the child says; ``processes.py`` owns the parent's side, ``serving.py`` the link. The first message in is the
reward (cloudpickle), each later one a group (pickle); every answer is JSON (``encode_answer``). The bytes come from the
parent that started this process.
"""

import asyncio
import inspect
import json
import pickle
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from stretto.environments.faults import Fault
from stretto.environments.rewards import Reward, Scores, call_reward, read_values, settle
from stretto.environments.serving import open_link, receive, send
from stretto.types import Group

__all__ = ["decode_answer", "encode_answer", "main"]


def encode_answer(answer: Sequence[Scores] | Fault) -> bytes:
    """An answer as JSON; floats keep their bits."""
    if isinstance(answer, Fault):
        body: object = {"cause": answer.cause, "sample": answer.sample, "traceback": answer.traceback}
    else:
        body = [dict(scores) for scores in answer]
    return json.dumps(body, allow_nan=False).encode()


def decode_answer(message: bytes) -> list[Scores] | Fault:
    """The answer that ``encode_answer`` wrote."""
    body: object = json.loads(message)
    if isinstance(body, dict):
        told = cast("Mapping[str, Any]", body)
        return Fault(cause=told["cause"], sample=told["sample"], traceback=told["traceback"])
    return cast("list[Scores]", body)


def main(answers_fd: int) -> None:
    """Serve over the socket ``answers_fd`` until its other end closes."""
    with open_link(answers_fd) as link:
        first = receive(link)
        if first is None:
            return
        try:
            name, reward = cast("tuple[str, Reward]", pickle.loads(first))
        except BaseException as error:  # noqa: BLE001 - it imports the user's modules; the parent tells
            send(link, encode_answer(Fault(cause=f"{type(error).__name__}: {error}")))
            return
        send(link, encode_answer([]))
        with asyncio.Runner() as runner:
            while (message := receive(link)) is not None:
                send(link, encode_answer(_judge(name, reward, cast("Group", pickle.loads(message)), runner)))


def _judge(name: str, reward: Reward, group: Group, runner: asyncio.Runner) -> list[Scores] | Fault:
    # A reward that draws random numbers gives the same ones in any worker, on any day.
    random.seed(group.draw)
    np.random.seed(group.draw % 2**32)
    values = call_reward(reward, group)
    if not isinstance(values, Fault) and any(inspect.isawaitable(value) for value in values):
        values = runner.run(settle(values, group))
    return values if isinstance(values, Fault) else read_values(name, values, group)
