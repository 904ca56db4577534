"""The log-ratios of a ragged batch, with the sums and means of its rows. Everything else here is made from them.

Shapes: B rows, N tokens of all rows (``offsets`` [B + 1] cuts them). A masked place holds 0, whatever came there.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.types import Masks

__all__ = ["Doubles", "Flags", "LogRatios", "clamp"]

Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]
Offsets = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, kw_only=True, eq=False)
class LogRatios:
    """``d_N`` = trainer - sampler log-prob of each token in ``written_N``, else 0.

    A log-ratio that is NaN at a written place stays NaN in what is made from it and rejects nothing, so that the update
    it is part of is skipped and counted, and not quietly trained without it.
    """

    d_N: Doubles
    written_N: Flags
    offsets: Offsets

    @classmethod
    def between(
        cls, trainer_N: ArrayLike, sampler_N: ArrayLike, mask_N: Masks | Flags, offsets: Offsets
    ) -> "LogRatios":
        """From log-probs; those at masked places do not matter."""
        written_N = np.asarray(mask_N) != 0
        trainer, sampler = np.asarray(trainer_N, np.float64), np.asarray(sampler_N, np.float64)
        d_N = np.zeros(len(written_N))
        d_N[written_N] = trainer[written_N] - sampler[written_N]
        return cls(d_N=d_N, written_N=written_N, offsets=offsets)

    @cached_property
    def row_N(self) -> NDArray[np.int64]:
        """The row of each token."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.offsets))

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.offsets) - 1

    @cached_property
    def counts_B(self) -> Doubles:
        """Written tokens of each row."""
        return self.sum_rows(np.ones(len(self.d_N)))

    @cached_property
    def sums_B(self) -> Doubles:
        """The sum of each row's log-ratios: the log of its sequence ratio."""
        return self.sum_rows(self.d_N)

    @cached_property
    def means_B(self) -> Doubles:
        """The mean of each row's log-ratios, 0 where nothing was written: the log of its geometric mean."""
        return self.mean_rows(self.d_N)

    def sum_rows(self, values_N: Doubles) -> Doubles:
        """The sum over each row's written tokens [B]."""
        w = self.written_N
        return np.bincount(self.row_N[w], weights=values_N[w], minlength=self.num_rows).astype(np.float64)

    def mean_rows(self, values_N: Doubles) -> Doubles:
        """The mean over each row's written tokens [B], 0 where there are none."""
        return self.sum_rows(values_N) / np.maximum(self.counts_B, 1.0)

    def max_rows(self, values_N: Doubles) -> Doubles:
        """The largest value among each row's written tokens [B], -inf where there are none."""
        out_B = np.full(self.num_rows, -np.inf)
        np.maximum.at(out_B, self.row_N[self.written_N], values_N[self.written_N])
        return out_B

    def spread(self, values_B: NDArray[Scalar]) -> NDArray[Scalar]:
        """Each row's value at its written tokens [N], 0 elsewhere."""
        out_N = np.zeros(len(self.d_N), values_B.dtype)
        out_N[self.written_N] = values_B[self.row_N[self.written_N]]
        return out_N


def clamp(d: Doubles, limit: float | None) -> Doubles:
    """``d`` held within ``limit`` on both sides; None: as it is."""
    return d if limit is None else np.clip(d, -limit, limit)
