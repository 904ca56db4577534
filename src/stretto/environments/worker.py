"""What runs in a reward process: read a group, call the reward, write its scores, until the parent is gone.

Owns what the child says; ``processes.py`` owns the parent's side, ``serving.py`` the link. The first message in is the
rewards with their name (cloudpickle), each later one a group and its occasion (pickle); every answer is JSON
(``encode_answer``). The bytes come from the parent that started this process.
"""

import asyncio
import inspect
import json
import pickle
import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from stretto.environments.faults import Fault
from stretto.environments.rewards.calling import call_rewards, read_answer, settle
from stretto.environments.rewards.contract import Answer, Rewards
from stretto.environments.serving import open_link, receive, send
from stretto.types import Group, Occasion

__all__ = ["decode_answer", "encode_answer", "main"]


def encode_answer(answer: Answer | Fault) -> bytes:
    """An answer as JSON; floats keep their bits."""
    if isinstance(answer, Fault):
        body: object = {"cause": answer.cause, "sample": answer.sample, "traceback": answer.traceback}
    else:
        body = [[dict(scores) for scores in answer.rows], [dict(notes) for notes in answer.notes]]
    return json.dumps(body, allow_nan=False).encode()


def decode_answer(message: bytes) -> Answer | Fault:
    """The answer that ``encode_answer`` wrote."""
    body: object = json.loads(message)
    if isinstance(body, dict):
        told = cast("Mapping[str, Any]", body)
        return Fault(cause=told["cause"], sample=told["sample"], traceback=told["traceback"])
    rows, notes = cast("list[Any]", body)
    return Answer(rows=rows, notes=notes)


def main(answers_fd: int) -> None:
    """Serve over the socket ``answers_fd`` until its other end closes."""
    with open_link(answers_fd) as link:
        first = receive(link)
        if first is None:
            return
        try:
            _, rewards = cast("tuple[str, Rewards]", pickle.loads(first))
            rewards.warm()
        except BaseException as error:  # noqa: BLE001 - it imports users' and optional modules; the parent tells
            send(link, encode_answer(Fault(cause=f"{type(error).__name__}: {error}")))
            return
        send(link, encode_answer(Answer(rows=())))
        with asyncio.Runner() as runner:
            while (message := receive(link)) is not None:
                group, occasion = cast("tuple[Group, Occasion]", pickle.loads(message))
                send(link, encode_answer(_judge(rewards, group, occasion, runner)))


def _judge(rewards: Rewards, group: Group, occasion: Occasion, runner: asyncio.Runner) -> Answer | Fault:
    # A reward that draws random numbers gives the same ones in any worker, on any day.
    random.seed(group.draw)
    np.random.seed(group.draw % 2**32)
    called = call_rewards(rewards, group, occasion)
    if not isinstance(called, Fault) and any(inspect.isawaitable(v) for calls in called for v in calls.values):
        called = runner.run(settle(rewards, called, group))
    return called if isinstance(called, Fault) else read_answer(rewards, called, group)
