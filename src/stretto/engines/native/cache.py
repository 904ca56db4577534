"""The KV cache of an engine: preallocated, one row a sequence. Owns its memory and where a token's keys go.

The sizes that batch invariance rests on are here: rows of a product come in multiples of ``ROWS``, keys of an attention
in multiples of ``KEYS``, or, while all sequences are short, in one of ``SHORT_KEYS``.
"""

import torch

__all__ = ["KEYS", "ROWS", "KVCache", "count_keys", "round_up"]

ROWS = 8
"""Rows of a matrix product come in multiples of this."""
KEYS = 64
"""Keys of an attention come in multiples of this."""
SHORT_KEYS = (16, 32)
"""Fewer keys than ``KEYS`` that give the same bits, for heads of at least 32 dimensions (found by trying)."""


def round_up(count: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is at least ``count``."""
    return -(-count // multiple) * multiple


def count_keys(longest: int, head_dim: int) -> int:
    """How many keys an attention reads when the longest of its sequences has ``longest``."""
    short = (keys for keys in SHORT_KEYS if keys >= longest and head_dim >= 32)
    return next(short, round_up(longest, KEYS))


class KVCache:
    """Keys and values [layers, 2, rows, kv_heads, length, head_dim], zero at first so that no stale value is NaN."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.zero_()
        self.rows = tensor.shape[2]
        self.length = tensor.shape[4]
        self._kv_heads = tensor.shape[3]
        self._head_dim = tensor.shape[5]

    def keys(self, longest: int) -> int:
        """``count_keys`` for this cache."""
        return count_keys(longest, self._head_dim)

    def move(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Copy the first ``length`` positions of rows ``source`` to rows ``target`` (disjoint)."""
        self.tensor[:, :, target, :, :length] = self.tensor[:, :, source, :, :length]

    def places(self, first: int, positions: torch.Tensor) -> torch.Tensor:
        """Where the tokens at ``positions`` [R, C] of rows ``first ..`` go in one layer viewed as [any, head_dim].

        In the order row, token, keys before values, head: [R C 2 kv_heads].
        """
        rows, chunk = positions.shape
        kv_heads = self._kv_heads
        row = torch.arange(first, first + rows, device=positions.device)
        head = (row[:, None] * kv_heads + torch.arange(kv_heads, device=row.device)) * self.length
        place = positions[:, :, None] + head[:, None, :]
        both = torch.stack((place, place + self.rows * kv_heads * self.length), dim=2)
        return both.view(rows * chunk * 2 * kv_heads)
