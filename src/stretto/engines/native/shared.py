"""Prompts that several running samples attend to: computed once, held once, read once a step for all of them.

A long prompt of a request with several samples is not copied to their rows of the KV cache. The rows hold what each
has written; the prompt stands here, and a decoding step attends to it with all of its samples as rows of one product.
Which requests are treated so follows from the request alone (``is_shared``), so its bits do not depend on company.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.engines.native.cache import KVCache, Padding, round_up
from stretto.roles import Request

__all__ = ["SharedPast", "SharedPrompts", "is_shared"]

_LEAST_SAMPLES, _LEAST_TOKENS = 4, 96
"""From where on reading a prompt once is worth two attentions instead of one."""
_WIDTHS = (8, 16)
"""Samples of one prompt are padded to multiples of the first of these that rounds as more do (``Padding``), so that
finished ones change no bit of the others."""


def is_shared(request: Request) -> bool:
    """Whether the samples of ``request`` share one copy of their prompt while they run."""
    return len(request.seeds) >= _LEAST_SAMPLES and len(request.token_ids) >= _LEAST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedPast:
    """What a step's R rows have in common: G prompts in ``cache``, each with room for W rows.

    ``row_GW`` are the rows of each prompt (0 where there is room left), flat; ``place_R`` is where a row stands in it;
    ``has_R`` whether it has a shared prompt, ``base_R`` how many tokens of it (else 0); ``lengths_G`` tokens of each.
    """

    cache: KVCache
    num_keys: int
    row_GW: torch.Tensor
    place_R: torch.Tensor
    has_R: torch.Tensor
    base_R: torch.Tensor
    lengths_G: torch.Tensor


class SharedPrompts:
    """Memory for shared prompts, as much as has ever been needed at once. ``new_cache(rows, length)`` makes more."""

    def __init__(self, new_cache: Callable[[int, int], KVCache], length: int, padding: Padding) -> None:
        self._new_cache, self._length, self._padding = new_cache, length, padding
        self._cache: KVCache | None = None
        self._lengths = np.zeros(0, np.int64)

    def put(self, prompt: torch.Tensor, length: int, used: set[int]) -> int:
        """Keep a computed prompt [layers, 2, kv_heads, any, head_dim] of ``length`` tokens; the number it has while
        someone uses it. ``used`` are those that are."""
        number = next(n for n in range(len(used) + 1) if n not in used)
        held = len(self._lengths)
        if self._cache is None or number >= held:
            larger = self._new_cache(max(4, 2 * held), self._length)
            if self._cache is not None:
                larger.tensor[:, :, :held] = self._cache.tensor
            self._lengths = np.concatenate([self._lengths, np.zeros(larger.rows - held, np.int64)])
            self._cache = larger
        self._cache.tensor[:, :, number, :, : prompt.shape[3]] = prompt
        self._lengths[number] = length
        return number

    def renew(self, number: int, prompt: torch.Tensor) -> None:
        """Keep prompt ``number`` as other weights computed it."""
        assert self._cache is not None
        self._cache.tensor[:, :, number, :, : prompt.shape[3]] = prompt

    def clean(self) -> None:
        """Make everything zero: a failed engine may have left NaN behind, which no mask can hide."""
        if self._cache is not None:
            self._cache.tensor.zero_()

    def past(self, group_R: NDArray[np.int64], base_R: NDArray[np.int64], device: torch.device) -> SharedPast | None:
        """What the rows share: ``group_R`` has the number of each row's prompt or -1. None if nothing."""
        has = group_R >= 0
        if self._cache is None or not has.any():
            return None
        own = group_R[has]
        count = int(own.max()) + 1
        sizes = np.bincount(own, minlength=count)
        width = round_up(int(sizes.max()), self._padding.together(self._cache, _WIDTHS)[0])
        order = np.argsort(own, kind="stable")
        rank = np.empty(len(own), np.int64)
        rank[order] = np.arange(len(own)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        place = np.zeros(len(group_R), np.int64)
        place[has] = own * width + rank
        row = np.zeros(count * width, np.int64)
        row[place[has]] = np.flatnonzero(has)
        # Prompts in between that nobody uses any more are read along; what they give goes nowhere.
        lengths = np.where(sizes > 0, self._lengths[:count], 1)

        def send(array: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        return SharedPast(
            cache=self._cache,
            num_keys=self._padding.keys(int(lengths.max()), self._cache, width),
            row_GW=send(row),
            place_R=send(place),
            has_R=send(has),
            base_R=send(base_R),
            lengths_G=send(lengths),
        )
