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

__all__ = ["KEYS_AT_ONCE", "MOST_KEYS", "cancelling", "in_thread", "least_keys", "same_rows"]

T = TypeVar("T")
MOST_KEYS = 1024
"""Nothing was ever seen to change beyond."""
KEYS_AT_ONCE = 192
"""Keys that are summed over in one product, if it has several rows: of more MKL would sum parts, how large depends on
how many there are in all, and so on company."""
_HEADS = 1
"""Products of few numbers may go another way: so the fewest."""


def cancelling(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``left`` and ``right`` [.., N, columns] changed so that their products are zero but for rounding: what is left of
    them tells the order of the sums, even in a type that would round most of it away."""
    columns = left.shape[-1]
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(1))
    one, other = order[: columns // 2], order[columns // 2 : columns // 2 * 2]
    left[..., order[columns // 2 * 2 :]] = 0.0
    left[..., other], right[..., other] = -left[..., one], right[..., one]
    return left, right


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
    """The first of ``keys`` (ascending) from which on ``rows`` queries have the same bits as with the last: in their
    scores, and in the sums over as many values."""
    assert threads == torch.get_num_threads()
    query, key = _numbers(rows, keys[-1], head_dim, dtype, device)
    value, _ = _numbers(min(keys[-1], KEYS_AT_ONCE), keys[0], head_dim, dtype, device)
    few = torch.randn(_HEADS, rows, keys[0], generator=torch.Generator().manual_seed(2))
    few, turned = cancelling(few, value[:, : keys[0]].float().cpu().transpose(1, 2).contiguous())
    value[:, : keys[0]] = turned.transpose(1, 2).to(device, dtype)
    weights = torch.zeros(_HEADS, rows, value.shape[1], dtype=dtype, device=device)
    weights[:, :, : keys[0]] = few.to(device, dtype)
    wanted, found = _scores(query, key), torch.bmm(weights, value)
    least = keys[-1]
    for count in reversed(keys[:-1]):
        same = torch.equal(_scores(query, key[:, :count]), wanted[:, :, :count])
        if not same or not torch.equal(torch.bmm(weights[:, :, :count], value[:, :count]), found):
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
    key = torch.randn(_HEADS, min(keys, MOST_KEYS), head_dim, generator=draw)
    query, key = cancelling(query, key)
    return query.to(device, dtype), key.to(device, dtype)


def _scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    mask = query.new_zeros(query.shape[0], query.shape[1], key.shape[1])
    return torch.baddbmm(mask, query, key.transpose(1, 2), alpha=query.shape[2] ** -0.5)
