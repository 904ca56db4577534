"""The sequences being decoded, in preallocated columns. Owns their tokens and their ends; knows no model.

Active rows are dense, ``0 .. active - 1``: a finished row is filled by the last one. Columns are numpy on the host;
nothing per token is a Python object.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.engines.native.jobs import Job
from stretto.engines.native.sampling import Draws, uniforms
from stretto.engines.native.stopping import Decode, StopWatch
from stretto.roles import Completion
from stretto.types import Finish, Ints, Span

__all__ = ["Moves", "Slots"]

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """Rows that changed place, and how many cache positions of them count."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    length: int


class Slots:
    """Columns over ``rows`` slots for sequences of at most ``max_len`` tokens. Stop strings need ``decode``.

    ``shared`` is the number of the prompt that a row shares with its siblings, -1 if it has its own copy; ``base`` are
    the tokens of it that the row's part of the KV cache does not hold.
    """

    def __init__(self, rows: int, max_len: int, decode: Decode | None = None) -> None:
        self.active = 0
        self._decode = decode
        self.token = np.zeros(rows, np.int64)
        self.position = np.zeros(rows, np.int64)
        self.shared = np.full(rows, -1, np.int64)
        self.base = np.zeros(rows, np.int64)
        self._made = np.zeros(rows, np.int64)
        self._max_tokens = np.zeros(rows, np.int64)
        self._seed = np.zeros(rows, np.uint64)
        self._temperature = np.ones(rows, np.float32)
        self._top_k = np.zeros(rows, np.int64)
        self._top_p = np.ones(rows, np.float64)
        self._min_p = np.zeros(rows, np.float64)
        self._stop_ids = np.full((rows, 4), _NO_TOKEN, np.int64)
        self._span_start = np.zeros(rows, np.int64)
        self._tokens = np.zeros((rows, max_len), np.int32)
        self._logprobs = np.zeros((rows, max_len), np.float32)
        self._jobs: list[Job] = []
        self._samples: list[int] = []
        self._spans: list[tuple[Span, ...]] = []
        self._watches: list[StopWatch | None] = []
        self._stops: list[str | None] = []
        self._num_watched = 0

    def clear(self) -> None:
        """Drop every sequence."""
        self.remove(np.arange(self.active))

    def add(self, job: Job, samples: Sequence[int], shared: int = -1) -> slice:
        """Give each sample of a job the next free row, at the end of its prompt; returns the rows."""
        rows = slice(self.active, self.active + len(samples))
        sampling = job.request.sampling
        self.position[rows] = len(job.request.token_ids)
        self.shared[rows] = shared
        self.base[rows] = len(job.request.token_ids) if shared >= 0 else 0
        self._made[rows] = 0
        self._span_start[rows] = 0
        self._max_tokens[rows] = sampling.max_tokens
        self._temperature[rows] = sampling.temperature
        self._top_k[rows] = sampling.top_k
        self._top_p[rows] = sampling.top_p
        self._min_p[rows] = sampling.min_p
        self._seed[rows] = np.array([job.request.seeds[s] % 2**64 for s in samples], np.uint64)
        stops = sampling.stop_ids
        if len(stops) > self._stop_ids.shape[1]:
            extra = np.full((len(self._stop_ids), len(stops) - self._stop_ids.shape[1]), _NO_TOKEN, np.int64)
            self._stop_ids = np.concatenate([self._stop_ids, extra], axis=1)
        self._stop_ids[rows] = _NO_TOKEN
        self._stop_ids[rows, : len(stops)] = stops
        self._jobs += [job] * len(samples)
        self._samples += samples
        self._spans += [()] * len(samples)
        self._watches += [self._watch(sampling.stop) for _ in samples]
        self._stops += [None] * len(samples)
        self._num_watched += len(samples) if sampling.stop else 0
        self.active = rows.stop
        return rows

    def draws(self, rows: slice) -> Draws:
        """How the next token of each row is drawn. Rows past the active ones are padding and draw anything."""
        return Draws(
            temperature_R=self._temperature[rows],
            top_k_R=self._top_k[rows],
            top_p_R=self._top_p[rows],
            min_p_R=self._min_p[rows],
            uniform_R=uniforms(self._seed[rows], self._made[rows]),
        )

    def record(self, rows: slice, tokens: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """Write the drawn token of each row, and look for its stop strings."""
        index = np.arange(rows.start, rows.stop)
        self._tokens[index, self._made[rows]] = tokens
        self._logprobs[index, self._made[rows]] = logprobs
        self.token[rows] = tokens
        self._made[rows] += 1
        if self._num_watched:
            for row in range(rows.start, rows.stop):
                watch = self._watches[row]
                if watch is not None:
                    self._stops[row] = watch.see(self._tokens[row, : self._made[row]])

    def finished(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Rows that have ended, ascending, and whether each ended by a stop token or string."""
        rows = slice(0, self.active)
        stopped = (self.token[rows, None] == self._stop_ids[rows]).any(axis=1)
        if self._num_watched:
            stopped |= np.array([stop is not None for stop in self._stops], np.bool_)
        ended = np.flatnonzero(stopped | (self._made[rows] >= self._max_tokens[rows]))
        return ended, stopped[ended]

    def rows_of(self, jobs: set[Job]) -> NDArray[np.int64]:
        """Rows of these jobs, ascending."""
        return np.array([row for row, job in enumerate(self._jobs) if job in jobs], np.int64)

    def job(self, row: int) -> Job:
        """Whose row it is."""
        return self._jobs[row]

    def sequence(self, row: int) -> Ints:
        """The tokens of a row so far: its prompt and what it has written."""
        return np.concatenate([self._jobs[row].request.token_ids, self._tokens[row, : self._made[row]]])

    def completion(self, row: int, finish: Finish, version: int) -> Completion:
        """What a row has written."""
        made = int(self._made[row])
        spans = self._spans[row]
        if made > self._span_start[row]:
            spans = (*spans, Span(version, made - int(self._span_start[row])))
        return Completion(
            index=self._samples[row],
            token_ids_T=self._tokens[row, :made].copy(),
            logprobs_T=self._logprobs[row, :made].copy(),
            versions=spans,
            finish=finish,
            stop=self._stops[row],
        )

    def end_version(self, version: int) -> None:
        """What is written from here on is not by ``version`` any more."""
        for row in range(self.active):
            made, start = int(self._made[row]), int(self._span_start[row])
            if made > start:
                self._spans[row] = (*self._spans[row], Span(version, made - start))
                self._span_start[row] = made

    def remove(self, rows: NDArray[np.int64]) -> Moves:
        """Free ``rows`` (ascending); what must move in the cache so that active rows stay dense."""
        left = self.active - len(rows)
        target = rows[rows < left]
        source = np.setdiff1d(np.arange(left, self.active), rows, assume_unique=True)
        length = int((self.position[source] - self.base[source]).max()) if len(source) else 0
        if len(source):
            for column in self._columns():
                column[target] = column[source]
            for old, new in zip(source.tolist(), target.tolist(), strict=True):
                self._jobs[new], self._samples[new] = self._jobs[old], self._samples[old]
                self._spans[new], self._watches[new] = self._spans[old], self._watches[old]
                self._stops[new] = self._stops[old]
        del self._jobs[left:], self._samples[left:], self._spans[left:], self._watches[left:], self._stops[left:]
        if self._num_watched:
            self._num_watched = sum(watch is not None for watch in self._watches)
        # Padding rows run along with the active ones: let them read little and sort nothing.
        freed = slice(left, self.active)
        self.token[freed], self.position[freed] = 0, 0
        self.shared[freed], self.base[freed] = -1, 0
        self._temperature[freed], self._top_k[freed], self._top_p[freed], self._min_p[freed] = 1, 0, 1, 0
        self.active = left
        return Moves(source=source, target=target, length=length)

    def _watch(self, stops: Sequence[str]) -> StopWatch | None:
        if not stops:
            return None
        assert self._decode is not None, "a request with stop strings was let through"
        return StopWatch(self._decode, stops)

    def _columns(self) -> tuple[NDArray[np.generic], ...]:
        return (
            self.token,
            self.position,
            self.shared,
            self.base,
            self._made,
            self._max_tokens,
            self._seed,
            self._temperature,
            self._top_k,
            self._top_p,
            self._min_p,
            self._stop_ids,
            self._span_start,
            self._tokens,
            self._logprobs,
        )
