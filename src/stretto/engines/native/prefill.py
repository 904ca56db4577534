"""Computing prompts. Owns the cut into chunks and the staging cache; hands out keys, values and first logits.

A prompt is cut by its own length alone, into chunks of 8 to 128 tokens (of those sizes that round alike on this
machine, ``Padding``), and may begin behind a part that is known already (``prefixes``). Prompts whose chunks have the
same size and place run together as rows.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.engines.native.cache import KEYS, Padding, round_up
from stretto.engines.native.forward import Forward, HeldWeights
from stretto.engines.native.prefixes import Prefixes
from stretto.types import Ints

__all__ = ["CHUNKS", "Prefill", "cut", "padded_length"]

CHUNKS = (8, 16, 32, 64, 128)
"""Tokens of a chunk."""
_SMALL = 32
"""Tokens of a chunk that is not halved to save a few."""
_PASS_TOKENS = 1024
"""Tokens of one pass over the model: more would not stay in a processor's cache."""
_PASS_SCORES = 2**21
"""Tokens times keys of one pass: what limits the attention's memory, by the head."""


def padded_length(length: int) -> int:
    """Positions that the chunks of a prompt of ``length`` tokens cover."""
    return round_up(length, CHUNKS[0])


def cut(start: int, end: int, sizes: Sequence[int] = CHUNKS) -> Iterator[tuple[int, int]]:
    """Chunks (start, size) of positions ``start`` to ``end`` (multiples of 8), the largest first.

    The last one may reach past ``end`` where that saves a pass over a few tokens, never past a multiple of ``KEYS``.
    sizes: those a chunk may have, from 8, 16 or 32 on, each twice the one before.
    """
    while start < end:
        left = end - start
        size = next((c for c in sizes if left <= c), sizes[-1])
        if size > _SMALL and left <= 3 * size // 4:  # a quarter of padding at most, but for short ones
            size //= 2
        while size > _SMALL and size * (start + size) > _PASS_SCORES:
            size //= 2
        while start + size > round_up(end, KEYS):  # where the cache may end
            size //= 2
        yield start, size
        start += size


class Prefill:
    """Computes up to ``rows`` prompts at once into a cache of its own, but for what ``prefixes`` remembers of them."""

    def __init__(self, forward: Forward, rows: int, length: int, padding: Padding, prefixes: Prefixes) -> None:
        self.rows = rows
        self._forward, self._padding, self._prefixes = forward, padding, prefixes
        self.cache = forward.new_cache(rows, length)
        self._sizes: Sequence[int] = ()
        self._dtype, self._device = self.cache.tensor.dtype, self.cache.tensor.device

    def run(self, weights: HeldWeights, prompts: Sequence[Ints]) -> tuple[list[int], torch.Tensor, int]:
        """The cache row of each prompt, the logits [R, V] of the token that follows it, by cache row, and the number
        of tokens that were remembered instead of computed."""
        assert 0 < len(prompts) <= self.rows
        if not self._sizes:  # found by trying, in the thread that computes
            self._sizes = self._padding.chunks(self.cache, CHUNKS)
        known = [self._prefixes.known(prompt) for prompt in prompts]
        starts = np.array([len(blocks) * self._prefixes.block for blocks in known])
        lengths = np.array([len(prompt) for prompt in prompts])
        order = np.lexsort((-lengths, starts))
        starts, lengths = starts[order], lengths[order]
        ids = np.zeros((len(prompts), self.cache.length), np.int64)
        for row, i in enumerate(order):
            ids[row, : lengths[row]] = prompts[i]
            self._prefixes.restore(known[i], self.cache.tensor[:, :, row])
        last = self._passes(weights, torch.from_numpy(ids).to(self._device), starts, lengths)
        for row, i in enumerate(order):
            self._prefixes.remember(prompts[i], self.cache.tensor[:, :, row])
        rows = np.empty(len(prompts), np.int64)
        rows[order] = np.arange(len(prompts))
        return rows.tolist(), self._forward.logits(weights, last), int(starts.sum())

    def _passes(
        self, weights: HeldWeights, ids: torch.Tensor, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> torch.Tensor:
        """Compute every row's tokens from its start on; the last states [R, hidden]."""
        forward = self._forward
        shape = self._padding.rows(len(starts)), forward.sizes.hidden
        last = torch.zeros(shape, dtype=self._dtype, device=self._device)
        for start, size, first, after in _shared_chunks(starts, lengths, self._sizes):
            keys = self._padding.keys(start + size, self.cache, size)
            most = max(1, min(_PASS_TOKENS // size, _PASS_SCORES // (size * keys)))
            for begin in range(first, after, most):
                end = min(begin + most, after)
                position = torch.arange(start, start + size, device=self._device).expand(end - begin, size)
                chunk = ids[begin:end, start : start + size]
                state = forward.hidden(weights, self.cache, begin, chunk, position, keys)
                ends = begin + np.flatnonzero((lengths[begin:end] > start) & (lengths[begin:end] <= start + size))
                if len(ends):
                    row = torch.from_numpy(ends).to(self._device)
                    place = torch.from_numpy(lengths[ends] - 1 - start).to(self._device)
                    last[row] = state[row - begin, place]
        return last


def _shared_chunks(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], sizes: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Chunks in order of their starts with the runs of rows that have them: (start, size, first row, row after)."""
    rows: dict[tuple[int, int], list[int]] = {}
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        for chunk in cut(start, padded_length(length), sizes):
            rows.setdefault(chunk, []).append(row)
    for (start, size), own in sorted(rows.items()):
        array = np.array(own)
        for run in np.split(array, np.flatnonzero(np.diff(array) > 1) + 1):
            yield start, size, int(run[0]), int(run[-1]) + 1
