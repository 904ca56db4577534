"""The KV cache of an engine: preallocated, one row a sequence. Owns its memory and where a token's keys go.

The sizes that batch invariance rests on are here (``Padding``): rows of a product come in multiples that round alike on
this machine (``matrix``), and so do the keys of an attention (``rounding``).
"""

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch

from stretto.engines.native.matrix import Product, rows_alike
from stretto.engines.native.rounding import MOST_KEYS, alike_keys, in_thread, same_rows

__all__ = ["KEYS", "KVCache", "Padding", "round_up"]

KEYS = 64
"""The length of a cache is a multiple of this, and in long sequences so is what an attention reads of it."""
SHORT_KEYS = (16, 32)
"""Fewer keys than ``KEYS``, which mostly give the same bits."""
MIDDLE_KEYS = (96, 160, 224, 288)
"""Keys in between, where these give the same bits too."""
ALIKE = 16
"""As many tokens of a row that attend together: what other numbers are compared with."""
LOOSE_KEYS = 8
"""Keys of an attention come in multiples of this where bits may depend on company."""


def round_up(count: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is at least ``count``."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How far products are padded so that a row's bits do not depend on its company; not ``invariant``: hardly.

    multiple: rows of the model's products come in multiples of this. alone: there is one slot, so decoding needs none.
    """

    invariant: bool = True
    multiple: int = 8
    alone: bool = False

    @classmethod
    def found(cls, products: Sequence[Product], device: torch.device, *, threads: int, alone: bool) -> "Padding":
        """What the products of a model need on this machine with as many threads."""

        def multiple() -> int:
            return max((rows_alike(product, device, threads).multiple for product in products), default=1)

        return cls(multiple=in_thread(threads, multiple), alone=alone)

    def rows(self, count: int) -> int:
        """How many rows a product has that needs ``count``."""
        return count if self.alone or not self.invariant else round_up(count, self.multiple)

    def keys(self, longest: int, cache: "KVCache", tokens: int) -> int:
        """How many keys an attention reads when the longest of its sequences has ``longest``.

        tokens: how many of a row attend together.
        """
        if not self.invariant:
            return round_up(longest, LOOSE_KEYS)
        return next((keys for keys in cache.alike_keys(tokens) if keys >= longest), round_up(longest, KEYS))

    def together(self, cache: "KVCache", sizes: Sequence[int]) -> tuple[int, ...]:
        """Those of ``sizes``, ascending numbers of tokens of a row that attend together, that give a token the same
        bits: ``ALIKE`` and its neighbours."""
        if not self.invariant:
            return tuple(sizes)
        more = itertools.takewhile(cache.as_alike, (n for n in sizes if n > ALIKE))
        return (*(n for n in sizes if n < ALIKE and cache.as_alike(n)), ALIKE, *more)

    def chunks(self, cache: "KVCache", sizes: Sequence[int]) -> tuple[int, ...]:
        """Those of ``sizes`` that a prompt may be computed in, whoever else is, and however much of it is known."""
        least = self.multiple if self.invariant else 1
        return tuple(n for n in self.together(cache, sizes) if n >= least) or (least,)


class KVCache:
    """Keys and values [layers, 2, rows, kv_heads, length, head_dim], zero at first so that no stale value is NaN.

    per_kv: query heads to a key-value head. length: a multiple of ``KEYS``.
    """

    def __init__(self, tensor: torch.Tensor, per_kv: int) -> None:
        self.tensor = tensor.zero_()
        self.rows = tensor.shape[2]
        self.length = tensor.shape[4]
        self.head_dim = tensor.shape[5]
        self._kv_heads = tensor.shape[3]
        self._flat = tensor.view(tensor.shape[0], -1, self.head_dim).unbind(0)
        self._per_kv = per_kv
        self._alike: dict[int, tuple[int, ...]] = {}

    def alike_keys(self, tokens: int) -> tuple[int, ...]:
        """With how many keys ``tokens`` tokens of a row that attend together have the same bits, as far as was tried;
        with more a multiple of ``KEYS``."""
        if tokens not in self._alike:
            most = min(self.length, MOST_KEYS)
            coarse = (*SHORT_KEYS, *range(KEYS, most + 1, KEYS))
            fine = tuple(sorted((*coarse, *(n for n in MIDDLE_KEYS if n < most))))
            good = alike_keys(tokens * self._per_kv, fine, *self._numbers)
            self._alike[tokens] = max(
                (_suffix(coarse, good), _suffix(fine, good)), key=lambda keys: (-keys[0], len(keys))
            )
        return self._alike[tokens]

    def as_alike(self, tokens: int) -> bool:
        """Whether a token has the same bits among ``tokens`` tokens of a row as among ``ALIKE``."""
        return same_rows(tokens * self._per_kv, ALIKE * self._per_kv, self.length, *self._numbers)

    @property
    def _numbers(self) -> tuple[int, torch.dtype, torch.device, int]:
        return self.head_dim, self.tensor.dtype, self.tensor.device, torch.get_num_threads()

    def move(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Copy the first ``length`` positions of rows ``source`` to rows ``target`` (disjoint)."""
        self.tensor[:, :, target, :, :length] = self.tensor[:, :, source, :, :length]

    def places(self, first: int, positions: torch.Tensor) -> torch.Tensor:
        """Where the tokens at ``positions`` [R, C] of rows ``first ..`` go in a layer's ``flat``.

        In the order row, token, keys before values, head: [R C 2 kv_heads].
        """
        rows, chunk = positions.shape
        kv_heads = self._kv_heads
        row = torch.arange(first, first + rows, device=positions.device)
        head = (row[:, None] * kv_heads + torch.arange(kv_heads, device=row.device)) * self.length
        place = positions[:, :, None] + head[:, None, :]
        both = torch.stack((place, place + self.rows * kv_heads * self.length), dim=2)
        return both.view(rows * chunk * 2 * kv_heads)

    def flat(self) -> Sequence[torch.Tensor]:
        """Every layer as [any, head_dim], to write at ``places``."""
        return self._flat

    def read(self, first: int, rows: int, num_keys: int) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """Of every layer the keys, turned for a product, [R kv_heads, head_dim, num_keys], and the values
        [R kv_heads, num_keys, head_dim] of rows ``first ..``."""
        both = self.tensor[:, :, first : first + rows].flatten(2, 3)[:, :, :, :num_keys]
        keys, values = both.unbind(1)
        return tuple(zip(keys.transpose(2, 3).unbind(0), values.unbind(0), strict=True))


def _suffix(keys: Sequence[int], good: Set[int]) -> tuple[int, ...]:
    """The last of ``keys``, from where on all are good; the very last is."""
    after = next((i for i in range(len(keys) - 1, -1, -1) if keys[i] not in good), -1)
    return tuple(keys[after + 1 :])
