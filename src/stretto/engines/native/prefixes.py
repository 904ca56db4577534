"""What the engine remembers of prompts it has computed: keys and values of whole blocks of tokens, the least recently
used forgotten first. A later prompt that begins alike, as the next turn of a conversation does, is computed from there.

A block is known by a hash of all tokens up to its end, so what is found was computed from the same tokens; computing it
again would give the same bits (a prompt's chunks do not change them), so a hit changes nothing but the time. Of
completions nothing is remembered: they were computed a token at a time, which rounds differently.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
import xxhash

from stretto.types import Ints

__all__ = ["BLOCK", "Prefixes"]

BLOCK = 32
"""Tokens that are remembered or forgotten together."""


class Prefixes:
    """Blocks of ``BLOCK`` tokens, at most ``tokens`` of them all (0: nothing is remembered).

    like: a KV cache's tensor [layers, 2, rows, kv_heads, length, head_dim].
    """

    def __init__(self, tokens: int, like: torch.Tensor) -> None:
        self.block = BLOCK
        layers, both, _, kv_heads, _, width = like.shape
        self._pool = like.new_zeros((tokens // BLOCK, layers, both, kv_heads, BLOCK, width))
        self._place: OrderedDict[bytes, int] = OrderedDict()

    def known(self, prompt: Ints) -> list[int]:
        """Where the blocks that ``prompt`` begins with are; its last token is always left to be computed."""
        found: list[int] = []
        names = self._names(prompt, (len(prompt) - 1) // BLOCK)
        for name in names:
            if name not in self._place:
                break
            found.append(self._place[name])
        self._touch(names[: len(found)])
        return found

    def restore(self, blocks: Sequence[int], into: torch.Tensor) -> None:
        """Copy blocks to the beginning of one row of a cache [layers, 2, kv_heads, length, head_dim]."""
        if blocks:
            taken = self._pool[list(blocks)].permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
            into[:, :, :, : taken.shape[3]] = taken

    def remember(self, prompt: Ints, row: torch.Tensor) -> None:
        """Keep the whole blocks of a prompt from its row of a cache [layers, 2, kv_heads, length, head_dim]."""
        names = self._names(prompt, min(len(prompt) // BLOCK, len(self._pool)))
        for index, name in enumerate(names):
            if name not in self._place:
                place = len(self._place)
                if place == len(self._pool):
                    _, place = self._place.popitem(last=False)
                self._place[name] = place
                self._pool[place] = row[:, :, :, index * BLOCK : (index + 1) * BLOCK]
        self._touch(names)

    def forget(self) -> None:
        """Drop everything: the weights have changed."""
        self._place.clear()
        self._pool.zero_()  # what is stale must not be NaN

    def _names(self, prompt: Ints, count: int) -> list[bytes]:
        """A hash of the tokens up to the end of each of the first ``count`` blocks."""
        if not len(self._pool):
            return []
        hashed, names = xxhash.xxh3_128(), list[bytes]()
        tokens = np.ascontiguousarray(prompt, np.int32)
        for index in range(count):
            hashed.update(tokens[index * BLOCK : (index + 1) * BLOCK].tobytes())
            names.append(hashed.digest())
        return names

    def _touch(self, names: Sequence[bytes]) -> None:
        """These were used now; a block counts as used after those behind it, so that it outlives them."""
        for name in reversed(names):
            if name in self._place:
                self._place.move_to_end(name)
