"""A weight matrix as products want it: as it is, or packed once for oneDNN where that wins. Owns the choice.

MKL packs a matrix anew in every product, which takes as long as a product with few rows; oneDNN can be handed one that
is packed already, and takes some 20 microseconds a call to look it up. So large matrices are packed, small ones are
not. The choice follows from sizes alone: the two round differently, and bits must not depend on the day.
"""

import platform

import torch
import torch.nn.functional as F

from stretto.plan.sizes import LARGE_MATRIX

__all__ = ["Matrix", "wins_packed"]


def wins_packed(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a matrix [rows, columns] is packed. A row's bits are then the same among any number of rows."""
    usable = device.type == "cpu" and dtype == torch.float32 and platform.machine() in ("x86_64", "AMD64")
    return usable and torch.backends.mkldnn.is_available() and rows * columns >= LARGE_MATRIX


class Matrix:
    """[rows, columns], filled in an update window and then used: ``begin``, write into ``dense``, ``settle``.

    A matrix over memory of another (``dense`` given) is never written by itself, and leaves that memory alone.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        packs: bool = False,
        dense: torch.Tensor | None = None,
    ) -> None:
        self._shape, self._dtype, self._device = (rows, columns), dtype, device
        self.packs = packs
        self._borrowed = dense is not None
        self._packed: torch.Tensor | None = None
        self._dense = dense
        self._turned = dense.t() if dense is not None else torch.empty(0)

    @property
    def dense(self) -> torch.Tensor:
        """The memory to write into, between ``begin`` and ``settle``."""
        assert self._dense is not None, "a packed matrix was written outside an update window"
        return self._dense

    def begin(self) -> None:
        """Take memory to be filled."""
        if self._dense is None:
            self._dense = torch.empty(self._shape, dtype=self._dtype, device=self._device)
            self._turned = self._dense.t()

    def settle(self) -> None:
        """Be ready for products; a packed matrix gives the plain memory back."""
        if self.packs:
            # The number of rows is a hint: with 1 it would choose a layout that sums in another order.
            self._packed = torch.ops.mkldnn._reorder_linear_weight.default(self.dense, 64)
            if not self._borrowed:
                self._dense, self._turned = None, torch.empty(0)

    def times(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x @ self.T + bias`` for x [N, columns]: [N, rows]."""
        if self._packed is None:
            return F.linear(x, self.dense, bias)
        return torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")

    def added(self, state: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``state + x @ self.T + bias``; ``state`` [N, rows] may be overwritten."""
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, state, self._packed, bias, "add")
        state.addmm_(x, self._turned)
        return state if bias is None else state.add_(bias)
