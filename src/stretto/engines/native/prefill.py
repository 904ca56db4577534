"""Computing prompts. Owns the cut into chunks and the staging cache; hands out keys, values and first logits.

A prompt is cut by its own length alone: whole chunks of 32 tokens, then one of 8, 16 or 32 for the rest. Prompts whose
chunks have the same size and place run together as rows; sorted by padded length, they are neighbours in the cache.
"""

from collections.abc import Sequence

import numpy as np
import torch

from stretto.engines.native.cache import ROWS, round_up
from stretto.engines.native.forward import Forward, HeldWeights
from stretto.types import Ints

__all__ = ["Prefill", "padded_length"]

_CHUNKS = (8, 16, 32)


def padded_length(length: int) -> int:
    """Positions that the chunks of a prompt of ``length`` tokens cover."""
    whole = length // _CHUNKS[-1] * _CHUNKS[-1]
    rest = length - whole
    return whole + next((size for size in _CHUNKS if size >= rest), 0) if rest else whole


class Prefill:
    """Computes up to ``rows`` prompts at once into a cache of its own."""

    def __init__(self, forward: Forward, rows: int, length: int) -> None:
        self.rows = rows
        self._forward = forward
        self.cache = forward.new_cache(rows, length)
        self._dtype, self._device = self.cache.tensor.dtype, self.cache.tensor.device

    def run(self, weights: HeldWeights, prompts: Sequence[Ints]) -> tuple[list[int], torch.Tensor]:
        """The cache row of each prompt, and the logits [R, V] of the token that follows it, by cache row."""
        assert 0 < len(prompts) <= self.rows
        forward = self._forward
        padded = np.array([padded_length(len(prompt)) for prompt in prompts])
        order = np.argsort(-padded, kind="stable")
        padded = padded[order]
        length = np.array([len(prompts[i]) for i in order])
        ids = np.zeros((len(prompts), padded[0]), np.int64)
        for row, i in enumerate(order):
            ids[row, : length[row]] = prompts[i]
        on_device = torch.from_numpy(ids).to(self._device)
        last = torch.zeros(round_up(len(prompts), ROWS), forward.sizes.hidden, dtype=self._dtype, device=self._device)
        for start in range(0, int(padded[0]), _CHUNKS[-1]):
            left = padded - start
            for size in _CHUNKS:
                here = np.flatnonzero(left >= size if size == _CHUNKS[-1] else left == size)
                if not len(here):
                    continue
                first, after = int(here[0]), int(here[-1]) + 1
                position = torch.arange(start, start + size, device=self._device).expand(after - first, size)
                chunk = on_device[first:after, start : start + size]
                keys = self.cache.keys(start + size)
                state = forward.hidden(weights, self.cache, first, chunk, position, keys)
                ends = here[padded[here] == start + size]
                if len(ends):
                    row = torch.from_numpy(ends).to(self._device)
                    place = torch.from_numpy(length[ends] - 1 - start).to(self._device)
                    last[row] = state[row - first, place]
        rows = np.empty(len(prompts), np.int64)
        rows[order] = np.arange(len(prompts))
        return rows.tolist(), forward.logits(weights, last)
