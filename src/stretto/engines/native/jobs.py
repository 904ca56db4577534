"""A request on its way through the engine, and what is handed back for it. Shared by the two sides of the engine."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from stretto.roles import Completion, Request

__all__ = ["Failure", "Job", "Prefix", "deliver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a request cannot be finished: the message of an EngineError, and its cause."""

    message: str
    cause: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """A computed prompt whose samples are not all in slots yet: the logits of the first token, and keys and values, or
    the number under which the samples share them."""

    logits: torch.Tensor
    keys_values: torch.Tensor | None = None
    shared: int = -1


@dataclass(slots=True, eq=False)
class Job:
    """One request. The event loop's side makes it and reads the mailbox; only the engine thread changes the rest.

    ``started`` maps each running sample to the number of steps the engine had done when it got its first token.
    """

    request: Request
    loop: asyncio.AbstractEventLoop
    mailbox: deque[Completion | Failure] = field(default_factory=deque["Completion | Failure"])
    arrival: asyncio.Event = field(default_factory=asyncio.Event)
    accepted_s: float = field(default_factory=time.monotonic)
    next_sample: int = 0
    num_done: int = 0
    tokens_done: int = 0
    started: dict[int, int] = field(default_factory=dict[int, int])
    prefix: Prefix | None = None
    over: bool = False

    @property
    def num_waiting(self) -> int:
        """Samples that are not in a slot yet."""
        return len(self.request.seeds) - self.next_sample

    @property
    def pending_s(self) -> float:
        """Seconds since the engine took the request."""
        return time.monotonic() - self.accepted_s

    def tokens_made(self, steps: int) -> int:
        """Tokens sampled so far, if the engine has done ``steps`` steps; right to one step from another thread."""
        return self.tokens_done + sum(steps - start + 1 for start in tuple(self.started.values()))


def deliver(items: Iterable[tuple[Job, Completion | Failure]]) -> None:
    """Put items in their jobs' mailboxes, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Completion | Failure]]] = {}
    for job, item in items:
        by_loop.setdefault(job.loop, []).append((job, item))
    for loop, batch in by_loop.items():
        if not loop.is_closed():  # nobody is left to read
            loop.call_soon_threadsafe(_put, batch)


def _put(batch: list[tuple[Job, Completion | Failure]]) -> None:
    for job, item in batch:
        job.mailbox.append(item)
        job.arrival.set()
