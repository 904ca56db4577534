"""Numbers in 8 bits, block by block (Dettmers et al. 2022, arXiv:2110.02861): a code each, and a scale for 256 of them.

A code names a place of the dynamic map, dense near 0: seven decades, twice as many places in each as in the one below.
bitsandbytes keeps moments so on a GPU alone and torchao needs torch's compiler; this is plain torch, on any device.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BLOCK", "Quantised"]

BLOCK = 256
"""Numbers that share a scale, the largest of their magnitudes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantised:
    """A flat float32 tensor of n numbers as codes [n] uint8 and scales [ceil(n / 256)]. ``signed``: of either sign."""

    codes: Tensor
    scales: Tensor
    signed: bool

    @classmethod
    def zeros(cls, count: int, *, signed: bool, device: torch.device) -> "Quantised":
        """``count`` zeros."""
        code = int(_dynamic_map(signed, device).places.abs().argmin())
        return cls(
            codes=torch.full((count,), code, dtype=torch.uint8, device=device),
            scales=torch.zeros(-(-count // BLOCK), device=device),
            signed=signed,
        )

    def read(self, start: int, stop: int) -> Tensor:
        """The numbers from ``start``, a multiple of 256, up to ``stop``."""
        values = _dynamic_map(self.signed, self.codes.device).places.index_select(0, self.codes[start:stop].int())
        padded = F.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        return padded.mul_(self.scales[start // BLOCK : -(-stop // BLOCK), None]).view(-1)[: stop - start]

    def write(self, start: int, values: Tensor) -> None:
        """Put what is nearest to ``values`` at ``start``, a multiple of 256. What is above 0 stays so if unsigned: a
        step is divided by the root of a second moment."""
        blocks = F.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(dim=1)
        unit = blocks / scales.where(scales > 0, 1.0)[:, None]
        codes = _dynamic_map(self.signed, values.device).codes_of(unit.view(-1)[: len(values)])
        self.codes[start : start + len(values)] = codes
        self.scales[start // BLOCK : start // BLOCK + len(scales)] = scales


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _DynamicMap:
    """256 ``places`` from -1 or 0 to 1, rising; code c is of what lies above ``edges[c - 1]`` and up to ``edges[c]``.

    ``lowest`` [2^16] is the code of the least number of those whose upper 16 bits are equal; these are so close that
    the code of another is the same or the next.
    """

    places: Tensor
    edges: Tensor
    lowest: Tensor

    def codes_of(self, unit: Tensor) -> Tensor:
        """Codes [n] uint8 of numbers [n] in -1 .. 1."""
        codes = self.lowest.index_select(0, (unit.view(torch.int32) >> 16).add_(2**15))
        return (codes + (unit > self.edges.index_select(0, codes))).to(torch.uint8)


@cache
def _dynamic_map(signed: bool, device: torch.device) -> _DynamicMap:
    decades = []
    for decade in range(7):
        count = 2**decade if signed else 2 ** (decade + 1)
        # The middles of equal parts of 0.1 .. 1.
        decades.append(10.0 ** (decade - 6) * (0.1 + 0.9 * (torch.arange(count, dtype=torch.float64) + 0.5) / count))
    above = torch.cat(decades)
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    places = torch.cat((-above.flip(0), zero, above, one) if signed else (zero, above, one)).float()
    edges = (places[1:] + places[:-1]) / 2
    if not signed:
        edges[0] = 0.0
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    # Of a negative number more bits are less.
    least = torch.where(upper < 0, (upper << 16) | 0xFFFF, upper << 16).view(torch.float32)
    lowest = torch.bucketize(least.nan_to_num(0.0), edges, out_int32=True)
    return _DynamicMap(
        places=places.to(device),
        edges=torch.cat((edges, torch.tensor([torch.inf]))).to(device),
        lowest=lowest.to(device),
    )
