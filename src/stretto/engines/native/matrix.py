"""A weight matrix as products want it: packed once for oneDNN, or turned. Owns the choice.

MKL packs a matrix anew in every product, which takes as long as a product with few rows; oneDNN can be handed one that
is packed already, and takes some 20 microseconds a call to look it up. So large matrices are packed. Small ones are
laid out column by column, which MKL packs twice as fast as row by row, and where it mostly rounds alike for any number
of rows but one. The choice follows from sizes and the CPU alone: layouts round differently, and bits must not depend on
the day.

Which numbers of rows give one the same bits differs by library, sizes and CPU: it is found by trying (``rows_alike``).
"""

import platform
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F

from stretto.engines.native.rounding import cancelling
from stretto.plan.sizes import LARGE_MATRIX

__all__ = ["Alike", "Layout", "Matrix", "Product", "layout_of", "rows_alike", "turned"]

Layout: TypeAlias = Literal["packed", "turned", "plain"]
"""How a matrix lies in memory: for oneDNN, column by column, or row by row as it is written."""

_FEW, _MANY = (1, 2, 4, 8), (16, 32)
"""Multiples of rows: of many, padding costs more than products in parts."""
_TRIED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 32, 40, 48, 56, 64, 96, 128, 192, 320, 512)
"""Numbers of rows."""
_BLOCKS = (None, 128, 32)
"""Rows that are multiplied in one product at most, the first that rounds alike."""
_MOST_ROWS = 2048
"""Of a matrix that is tried."""


def layout_of(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Layout:
    """How a matrix [rows, columns] is laid out."""
    if device.type != "cpu":
        return "plain"
    if rows * columns < LARGE_MATRIX:
        return "turned"
    has = dtype == torch.float32 or (dtype == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported())
    usable = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()
    return "packed" if has and usable else "plain"


def turned(matrix: torch.Tensor) -> torch.Tensor:
    """The same numbers [rows, columns] in memory column by column."""
    return matrix.t().contiguous().t()


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Something rows are multiplied by: a matrix [rows, columns]. ``whole``: by nobody who could do it in parts."""

    rows: int
    columns: int
    dtype: torch.dtype
    layout: Layout
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """A row has the same bits in all products of a multiple of ``multiple`` rows, at most ``most`` of them if given."""

    multiple: int
    most: int | None = None


@cache
def rows_alike(product: Product, device: torch.device, threads: int) -> Alike:
    """What holds for ``product`` on this machine, tried on random numbers in the calling thread (of ``threads``)."""
    assert threads == torch.get_num_threads()
    draw = torch.Generator().manual_seed(0)
    matrix = Matrix(min(product.rows, _MOST_ROWS), product.columns, product.dtype, device, layout=product.layout)
    matrix.begin()
    x, weight = cancelling(
        torch.randn(_TRIED[-1], product.columns, generator=draw), torch.randn(matrix.dense.shape, generator=draw)
    )
    matrix.dense.copy_(weight)
    matrix.settle()
    x = x.to(device, product.dtype)
    for multiples in ((*_FEW, *_MANY),) if product.whole else (_FEW, _MANY):
        for most in _BLOCKS:
            tried = [n for n in _TRIED if most is None or n <= most]
            made = {n: matrix.times(x[:n]) for n in tried}
            alike = {n for n in tried if torch.equal(made[n], made[tried[-1]][:n])}
            for multiple in multiples:
                if all(n in alike for n in tried if n % multiple == 0):
                    return Alike(multiple=multiple, most=most)
    raise AssertionError("products of one size differ")


class Matrix:
    """[rows, columns], filled in an update window and then used: ``begin``, write into ``dense``, ``settle``.

    Writers look at the strides of ``dense``: a turned matrix is written where it stays, column by column. A matrix over
    memory of another (``dense`` given) is never written by itself, and leaves that memory alone.
    most: rows that are multiplied in one product at most; more are several products.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        layout: Layout,
        most: int | None = None,
        dense: torch.Tensor | None = None,
    ) -> None:
        self._shape, self._dtype, self._device = (rows, columns), dtype, device
        self._layout: Layout = layout
        self._most = most
        self._borrowed = dense is not None
        self._packed: torch.Tensor | None = None
        self._dense = dense
        self._weight = torch.empty(0)

    @property
    def dense(self) -> torch.Tensor:
        """The memory to write into, between ``begin`` and ``settle``."""
        assert self._dense is not None, "a matrix was written outside an update window"
        return self._dense

    def begin(self) -> None:
        """Take memory to be filled."""
        if self._dense is None:
            dense = torch.empty(self._shape, dtype=self._dtype, device=self._device)
            self._dense = turned(dense) if self._layout == "turned" else dense

    def settle(self) -> None:
        """Be ready for products; a packed matrix gives the memory that was written back."""
        if self._layout == "packed":
            # The number of rows is a hint: with 1 it would choose a layout that sums in another order.
            self._packed = torch.ops.mkldnn._reorder_linear_weight.default(self.dense, 64)
            if not self._borrowed:
                self._dense = None
        else:
            self._weight = turned(self.dense) if self._layout == "turned" and self._borrowed else self.dense

    def times(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x @ self.T + bias`` for x [N, columns]: [N, rows]."""
        if self._most is not None and len(x) > self._most:
            return torch.cat([self._times(part, bias) for part in x.split(self._most)])
        return self._times(x, bias)

    def added(self, state: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``state + x @ self.T + bias``; ``state`` [N, rows] may be overwritten."""
        if self._most is not None and len(x) > self._most:
            parts = zip(state.split(self._most), x.split(self._most), strict=True)
            return torch.cat([self._added(own, part, bias) for own, part in parts])
        return self._added(state, x, bias)

    def _times(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._packed is None:
            return F.linear(x, self._weight, bias)
        return torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")

    def _added(self, state: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, state, self._packed, bias, "add")
        state.addmm_(x, self._weight.t())
        return state if bias is None else state.add_(bias)
