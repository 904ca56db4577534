"""Which sizes of an attention's product of queries and keys round alike on this machine: found by trying.

Libraries have several ways to multiply and choose by the sizes, each at its own limits on each kind of CPU. With
AVX-512, MKL multiplies 32 queries by 32 keys of 32 dimensions in another order than by 64 keys; without, it does not.
So nothing is assumed: sizes are tried on random numbers, once in a process, and those that agree are used (and so for
the model's matrices, ``matrix.rows_alike``). ``threads`` are those of the thread that calls.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
import torch.nn.functional as F

__all__ = ["MOST_KEYS", "alike_keys", "cancelling", "in_thread", "same_rows", "weighted"]

T = TypeVar("T")
MOST_KEYS = 1024
"""Nothing was ever seen to change beyond."""
_KEYS_AT_ONCE = 192
"""Keys that are summed over in one product, if it has several rows: of more MKL would sum parts, how large depends on
how many there are in all, and so on company."""
_HEADS, _MORE_HEADS = 1, 8
"""Products of few numbers may go another way: so the fewest. More, since two ways to round agree by chance."""
_FEW_ROWS = 8
"""With more, chance has enough to choose from."""


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


def weighted(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """``weights @ values``, [B, M, K] and [B, K, D], its sums in an order that does not depend on K."""
    if weights.shape[1] == 1 or weights.shape[2] <= _KEYS_AT_ONCE:
        return torch.bmm(weights, values)
    out = torch.bmm(weights[:, :, :_KEYS_AT_ONCE], values[:, :_KEYS_AT_ONCE])
    for start in range(_KEYS_AT_ONCE, weights.shape[2], _KEYS_AT_ONCE):
        here = slice(start, start + _KEYS_AT_ONCE)
        out.baddbmm_(weights[:, :, here], values[:, here])
    return out


@cache
def alike_keys(
    rows: int, keys: tuple[int, ...], head_dim: int, dtype: torch.dtype, device: torch.device, threads: int
) -> frozenset[int]:
    """Those of ``keys`` (ascending) with which ``rows`` queries that see no more keys have the same bits as with the
    last: in their scores, in what is normalised by them, and in the sums over values."""
    assert threads == torch.get_num_threads()
    several = (_HEADS, _MORE_HEADS) if rows <= _FEW_ROWS else (_HEADS,)
    trials = [_Attention.drawn(heads, rows, keys[-1], head_dim, dtype, device) for heads in several]
    return frozenset(count for count in keys if all(trial.alike(count) for trial in trials))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Attention:
    """Random numbers for an attention: scores of the most keys, and weights and values of as many, float32."""

    query: torch.Tensor
    key: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    values: torch.Tensor

    @classmethod
    def drawn(
        cls, heads: int, rows: int, keys: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> "_Attention":
        query, key = _numbers(rows, keys, head_dim, dtype, device, heads=heads)
        draw = torch.Generator().manual_seed(2)
        return cls(
            query=query,
            key=key,
            scores=_scores(query, key),
            weights=torch.randn(heads, rows, keys, generator=draw),
            values=torch.randn(heads, head_dim, keys, generator=draw),
        )

    def alike(self, count: int) -> bool:
        """Whether ``count`` keys give the bits of the most, to rows that see all of them and to rows that see less."""
        own = _scores(self.query, self.key[:, :count])
        haves = {7, count // 2, count - 5, count} if own.shape[1] <= _FEW_ROWS else {count}
        return torch.equal(own, self.scores[:, :, :count]) and all(
            torch.equal(one, other)
            for have in sorted(haves)
            for one, other in zip(self._found(own, have), self._found(self.scores, have), strict=True)
        )

    def _found(self, scores: torch.Tensor, have: int) -> tuple[torch.Tensor, ...]:
        """What rows that see ``have`` keys make of as many as there are scores."""
        more = scores.shape[2] - have
        hidden = scores.clone()
        hidden[:, :, have:] = float("-inf")
        few, turned = cancelling(self.weights[:, :, :have].clone(), self.values[:, :, :have].clone())
        value = F.pad(turned, (0, more)).transpose(1, 2).contiguous().to(scores)
        return (
            hidden.softmax(dim=-1)[:, :, :have],
            hidden.float().logsumexp(dim=-1),
            weighted(F.pad(few, (0, more)).to(scores), value),
        )


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
    rows: int, keys: int, head_dim: int, dtype: torch.dtype, device: torch.device, *, heads: int = _HEADS
) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(heads, rows, head_dim, generator=draw)
    key = torch.randn(heads, min(keys, MOST_KEYS), head_dim, generator=draw)
    query, key = cancelling(query, key)
    return query.to(device, dtype), key.to(device, dtype)


def _scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    mask = query.new_zeros(query.shape[0], query.shape[1], key.shape[1])
    return torch.baddbmm(mask, query, key.transpose(1, 2), alpha=query.shape[2] ** -0.5)
