"""Which sizes of an attention's product of queries and keys round alike on this machine: found by trying.

Libraries have several ways to multiply and choose by the sizes, each at its own limits on each kind of CPU. With
AVX-512, MKL multiplies 32 queries by 32 keys of 32 dimensions in another order than by 64 keys; without, it does not.
So nothing is assumed: sizes are tried on random numbers, once in a process, and those that agree are used (and so for
the model's matrices, ``matrix.rows_alike``). ``threads`` are those of the thread that calls.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

__all__ = ["in_thread", "least_keys", "same_rows"]

T = TypeVar("T")
_MOST_KEYS = 1024
"""Nothing was ever seen to change beyond."""
_HEADS = 2


def in_thread(threads: int, task: Callable[[], T]) -> T:
    """What ``task`` gives, or raises, in a thread with as many intra-op threads."""

    def run() -> T:
        torch.get_num_threads()  # takes over a process-wide default at first
        torch.set_num_threads(threads)
        return task()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stretto-native-trial") as pool:
        return pool.submit(run).result()


@cache
def least_keys(
    rows: int, keys: tuple[int, ...], head_dim: int, dtype: torch.dtype, device: torch.device, threads: int
) -> int:
    """The first of ``keys`` (ascending) from which on ``rows`` queries have the same bits as with the last."""
    assert threads == torch.get_num_threads()
    query, key = _numbers(rows, keys[-1], head_dim, dtype, device)
    wanted = _scores(query, key)
    least = keys[-1]
    for count in reversed(keys[:-1]):
        if not torch.equal(_scores(query, key[:, :count]), wanted[:, :, :count]):
            break
        least = count
    return least


@cache
def same_rows(
    rows: int, others: int, keys: int, head_dim: int, dtype: torch.dtype, device: torch.device, threads: int
) -> bool:
    """Whether a query has the same bits among ``rows`` as among ``others``, of ``keys`` keys."""
    assert threads == torch.get_num_threads()
    query, key = _numbers(max(rows, others), keys, head_dim, dtype, device)
    both = [_scores(query[:, :count].contiguous(), key)[:, : min(rows, others)] for count in (rows, others)]
    return torch.equal(*both)


def _numbers(
    rows: int, keys: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(_HEADS, rows, head_dim, generator=draw)
    key = torch.randn(_HEADS, min(keys, _MOST_KEYS), head_dim, generator=draw)
    return query.to(device, dtype), key.to(device, dtype)


def _scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    mask = query.new_zeros(query.shape[0], query.shape[1], key.shape[1])
    return torch.baddbmm(mask, query, key.transpose(1, 2), alpha=query.shape[2] ** -0.5)
