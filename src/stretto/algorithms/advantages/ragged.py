"""Recursions over the written tokens of ragged rows, from each row's last token back to its first.

Tokens are laid out by how far they are from the end of their row: first all last tokens, then all second last ones, and
so on, longer rows first within each. So every step of a recursion is one slice, no row is padded, and the only loop is
over steps.

Shapes: N tokens of all rows, of which W are written; B rows (``offsets`` [B + 1] cuts the N tokens).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.algorithms.advantages.siblings import Doubles
from stretto.types import Array

__all__ = ["Backward", "Offsets"]

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backward:
    """Where each written token goes: token ``written_W[i]`` of the N to place ``place_W[i]`` of the layout.

    The tokens that are s from the end lie at ``bounds[s]:bounds[s + 1]``, in the order of ``rows_B``, which has the
    longest rows first. ``lengths_B`` are written tokens by row.
    """

    num_tokens: int
    written_W: Offsets
    place_W: Offsets
    rows_B: Offsets
    bounds: Offsets
    lengths_B: Offsets

    @classmethod
    def of(cls, mask: ArrayLike, offsets: Offsets) -> "Backward":
        """The layout of rows cut by ``offsets`` [B + 1] whose written tokens are those with ``mask`` [N] not 0."""
        kept = np.asarray(mask) != 0
        written_W = np.flatnonzero(kept)
        ends_B = np.searchsorted(written_W, offsets[1:])
        lengths_B = np.diff(ends_B, prepend=0)
        rows_B = np.argsort(-lengths_B, kind="stable")
        rank_B = np.empty(len(rows_B), np.int64)
        rank_B[rows_B] = np.arange(len(rows_B))
        # How many rows have a token s from their end, for every s.
        alive = np.cumsum(np.bincount(lengths_B, minlength=1)[:0:-1])[::-1]
        bounds = np.concatenate([[0], np.cumsum(alive)])
        from_end_W = np.repeat(ends_B - 1, lengths_B) - np.arange(len(written_W))
        place_W = bounds[from_end_W] + np.repeat(rank_B, lengths_B)
        return cls(
            num_tokens=len(kept),
            written_W=written_W,
            place_W=place_W,
            rows_B=rows_B,
            bounds=bounds,
            lengths_B=lengths_B,
        )

    def lay(self, values: Array) -> Doubles:
        """``values`` [N] in the layout [W]. What stands at tokens that are not written is not read."""
        laid_W = np.empty(len(self.written_W))
        laid_W[self.place_W] = values[self.written_W]
        return laid_W

    def back(self, laid_W: Doubles) -> Doubles:
        """What is laid out [W] as tokens [N], 0 where nothing is written."""
        values = np.zeros(self.num_tokens)
        values[self.written_W] = laid_W[self.place_W]
        return values

    def next(self, laid_W: Doubles) -> Doubles:
        """Of every token the value of the next written one of its row [W]; 0 for the last."""
        following_W = np.zeros_like(laid_W)
        for start, end, after in zip(self.bounds[1:-1], self.bounds[2:], self.bounds[:-2], strict=True):
            following_W[start:end] = laid_W[after : after + end - start]
        return following_W

    def accumulate(self, laid_W: Doubles, factor: float | Doubles) -> Doubles:
        """``y_t = x_t + factor y_{t+1}`` over every row, 0 after its last token [W]; ``factor`` may be by row [B]."""
        factor_B = np.broadcast_to(np.asarray(factor, np.float64), self.rows_B.shape)[self.rows_B]
        sums_W = laid_W.copy()
        for start, end, after in zip(self.bounds[1:-1], self.bounds[2:], self.bounds[:-2], strict=True):
            width = end - start
            sums_W[start:end] += factor_B[:width] * sums_W[after : after + width]
        return sums_W
