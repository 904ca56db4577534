"""Where the tokens of a packed row stand in attention: padded blocks of sequences, one of two ways.

    spelled   every sequence written out from its first token: for attention that torch computes as it comes
    shared    a prompt attends once, and the completions of its trajectories attend to it and to themselves

Of the second kind there are two forms. A family of trajectories that is small all together is one row under a mask: the
prompt, then completion by completion. Of a larger one the prompt is a row, and its completions are clusters:

              |<- P ->|<- C ->|
       n rows |prompt |own    |   blocks hold G clusters of like sizes, or G rows (n = 1, P = 0)

Everything is exact and made when first asked for. Padding stands to the right of a row, a prompt and a completion.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["AttentionLayout", "Block", "GatherIndex", "Pieces", "SharedLayout", "SpelledLayout", "gather_index"]

Places = NDArray[np.int64]

SHORT = 32
"""Rows up to this length share one block: padding costs less than another call."""
WIDE = 2**17
"""Scores of a row against what it sees, beyond which it is spelled out: they would take more room than its states."""
SMALL = 96
"""Tokens of a family that are attended to together: more scores, but products of a size that is fast."""
SPARE = 2**15
"""Scores of padding that cost less than another block."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatherIndex:
    """Rows ``index`` [K] of a matrix [M, ...], and its transpose: row m was taken to places
    ``bag[bag_starts[m]:bag_starts[m + 1]]``, the last one up to the end of ``bag``."""

    index: Tensor
    bag: Tensor
    bag_starts: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpelledLayout:
    """``pad`` fills the places of all blocks, block i has ``blocks[i]`` = (rows, width), and packed token m is found at
    place ``unpad[m]``."""

    pad: GatherIndex
    unpad: Tensor
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """``clusters`` of ``rows`` completions of ``own`` tokens behind a prompt of ``prompt`` tokens, all padded.

    ``queries``, ``keys`` and ``prompt_keys`` are where its heads stand among those of all blocks. ``mask`` [clusters or
    1, 1, own, own] is -inf where a token (row) does not see another; ``prompt_mask`` [clusters, prompt] at a prompt's
    padding, None where there is none. ``causal``: the mask is no other than that of a sequence.
    """

    clusters: int
    rows: int
    own: int
    prompt: int
    queries: slice
    keys: slice
    prompt_keys: slice
    mask: Tensor
    prompt_mask: Tensor | None
    causal: bool

    @property
    def products(self) -> int:
        """G K n: how many products one call makes."""
        return (self.keys.stop - self.keys.start) // self.own


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedLayout:
    """The heads of all blocks in the order in which they are multiplied, for H heads of which S share a key-value head.

    ``queries`` lists rows of [M, H, D]: those of every block [G, K, n, S, C]. ``keys`` lists rows of [M, K, D]: those
    of every block [G, K, n, C] and of its prompts [G, K, P]. The outputs [M, H, D] are found among the queries at
    ``unpad``; ``bag`` and ``bag_starts`` (see GatherIndex) sum over the keys and, behind them, the values what belongs
    to each row of [2, M, K, D].
    """

    queries: Tensor
    keys: Tensor
    unpad: Tensor
    bag: Tensor
    bag_starts: Tensor
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """The R trajectories of a pack. Token t of one is packed at ``prompt_base + t`` inside its prompt, of ``firsts``
    tokens, and at ``own_base + t`` after it, up to ``lasts``; ``prompts`` tells equal prompts by equal numbers."""

    firsts_R: Places
    lasts_R: Places
    prompt_base_R: Places
    own_base_R: Places
    prompts_R: Places

    def place(self, row: Places, t: Places) -> Places:
        """Where tokens are packed."""
        return np.where(t < self.firsts_R[row], self.prompt_base_R[row], self.own_base_R[row]) + t


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Planned:
    """A block in the making: ``tokens`` [clusters, rows, own] and ``prompts`` [clusters, P] as packed places, -1 for
    padding; ``counted`` are the tokens whose outputs are taken from here. ``branches`` [clusters, own], of rows that
    are families: which completion a token belongs to, -1 for the prompt."""

    tokens: Places
    prompts: Places
    counted: NDArray[np.bool_]
    branches: Places | None = None

    def mask(self) -> NDArray[np.bool_]:
        """Which token (row) sees which (column), [clusters or 1, own, own]: earlier ones of branch or prompt."""
        earlier = np.tri(self.tokens.shape[2], dtype=bool)[None]
        if self.branches is None:
            return earlier
        own, other = self.branches[:, :, None], self.branches[:, None, :]
        return earlier & ((other < 0) | (other == own))


class AttentionLayout:
    """The layouts of a pack of ``num_tokens`` tokens."""

    def __init__(self, pieces: Pieces, num_tokens: int, device: torch.device) -> None:
        self._pieces, self._num_tokens, self._device = pieces, num_tokens, device
        self._shared: dict[tuple[int, int], SharedLayout] = {}

    @cached_property
    def spelled(self) -> SpelledLayout:
        """Every sequence from its first token."""
        pieces = self._pieces
        # A row that adds no token of its own is attended to nowhere, unless it brings the prompt.
        rows = _bringing(pieces)
        planned = [_plain(pieces, block, pieces.firsts_R * 0) for block in blocks_of(rows, pieces.lasts_R)]
        return SpelledLayout(
            pad=gather_index(np.concatenate([p.tokens.ravel() for p in planned]), self._num_tokens, self._device),
            unpad=self._unpad(planned),
            blocks=tuple((p.tokens.shape[0], p.tokens.shape[2]) for p in planned),
        )

    def shared(self, heads: int, kv_heads: int) -> SharedLayout:
        """Every prompt once."""
        if (heads, kv_heads) not in self._shared:
            self._shared[heads, kv_heads] = self._arranged(heads, kv_heads)
        return self._shared[heads, kv_heads]

    @cached_property
    def _planned(self) -> list[_Planned]:
        return list(_shared_plan(self._pieces))

    def _arranged(self, heads: int, kv_heads: int) -> SharedLayout:
        of_query = np.arange(heads).reshape(kv_heads, 1, -1, 1)
        of_key = np.arange(kv_heads)[:, None]
        queries, counted, keys, blocks = list[Places](), list[Places](), list[Places](), list[Block]()
        query_at, key_at = 0, 0
        for p in self._planned:
            clusters, rows, length = p.tokens.shape
            at = p.tokens[:, None]
            queries.append(_heads(at[:, :, :, None], of_query, heads))
            counted.append(_heads(np.where(p.counted, p.tokens, -1)[:, None, :, None], of_query, heads))
            keys += [_heads(at, of_key[:, None], kv_heads), _heads(p.prompts[:, None], of_key, kv_heads)]
            query_end, own_end = query_at + queries[-1].size, key_at + keys[-2].size
            blocks.append(
                Block(
                    clusters=clusters,
                    rows=rows,
                    own=length,
                    prompt=p.prompts.shape[1],
                    queries=slice(query_at, query_end),
                    keys=slice(key_at, own_end),
                    prompt_keys=slice(own_end, own_end + keys[-1].size),
                    mask=self._minus_infinity(~p.mask()[:, None]),
                    prompt_mask=self._minus_infinity(p.prompts < 0) if (p.prompts < 0).any() else None,
                    causal=p.branches is None,
                )
            )
            query_at, key_at = query_end, own_end + keys[-1].size
        of_outputs, of_keys = np.concatenate(counted), np.concatenate(keys)
        unpad = np.empty(self._num_tokens * heads, np.int64)
        unpad[of_outputs[of_outputs >= 0]] = np.flatnonzero(of_outputs >= 0)
        bag, starts = _transposed(of_keys, self._num_tokens * kv_heads)
        return SharedLayout(
            queries=self._send(np.maximum(np.concatenate(queries), 0)),
            keys=self._send(np.maximum(of_keys, 0)),
            unpad=self._send(unpad),
            bag=self._send(np.concatenate([bag, bag + len(of_keys)])),
            bag_starts=self._send(np.concatenate([starts, starts + len(bag)])),
            blocks=tuple(blocks),
        )

    def _send(self, array: Places) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _minus_infinity(self, where: NDArray[np.bool_]) -> Tensor:
        """To be added to scores."""
        return torch.from_numpy(np.where(where, np.float32(-np.inf), np.float32(0))).to(self._device)

    def _unpad(self, planned: Sequence[_Planned]) -> Tensor:
        unpad = np.zeros(self._num_tokens, np.int64)
        start = 0
        for p in planned:
            unpad[p.tokens[p.counted]] = start + np.flatnonzero(p.counted)
            start += p.tokens.size
        return torch.from_numpy(unpad).to(self._device)


def _heads(tokens: Places, heads: Places, width: int) -> Places:
    """Places of these heads of tokens that have ``width`` of them, in the order of both broadcast; -1 for padding."""
    return np.where(tokens < 0, -1, tokens * width + heads).ravel()


def _bringing(pieces: Pieces) -> Places:
    """Rows that spell out all packed tokens: those with tokens of their own, and one for a prompt that has none."""
    own = pieces.lasts_R > pieces.firsts_R
    alone = ~np.isin(pieces.prompts_R, pieces.prompts_R[own])
    first = np.unique(pieces.prompts_R, return_index=True)[1]
    return np.flatnonzero(own | (alone & np.isin(np.arange(len(own)), first)))


def _shared_plan(pieces: Pieces) -> Iterator[_Planned]:
    """Blocks of small families, of rows alone, of prompts, and of clusters."""
    own = pieces.lasts_R - pieces.firsts_R
    alone, prompts, small = list[int](), list[int](), list[Places]()
    counted_from = np.zeros(len(own), np.int64)
    clusters: list[Places] = []
    order = np.argsort(pieces.prompts_R, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(pieces.prompts_R[order])) + 1):
        attending = rows[own[rows] > 0]
        if len(attending) < 2:
            alone.append(int(attending[0] if len(attending) else rows[0]))
        elif pieces.firsts_R[rows[0]] + own[attending].sum() <= SMALL:
            small.append(attending)
        else:
            prompts.append(int(rows[0]))
            long = own[attending] * pieces.lasts_R[attending] > WIDE
            alone += attending[long].tolist()
            counted_from[attending[long]] = pieces.firsts_R[attending[long]]
            clusters += blocks_of(attending[~long], own)
    if small:
        yield _families(pieces, small, own)
    for block in blocks_of(np.asarray(alone, np.int64), pieces.lasts_R):
        yield _plain(pieces, block, counted_from)
    only_prompts = replace(pieces, lasts_R=pieces.firsts_R)
    for block in blocks_of(np.asarray(prompts, np.int64), pieces.firsts_R):
        yield _plain(only_prompts, block, np.zeros(len(own), np.int64))
    for together in _alike(clusters, own, pieces.firsts_R):
        yield _clustered(pieces, together, own)


def _families(pieces: Pieces, families: Sequence[Places], own: Places) -> _Planned:
    """Each family as one row: its prompt, then its completions one behind the other."""
    rows = np.concatenate(families)
    family_of = np.repeat(np.arange(len(families)), [len(f) for f in families])
    first = np.asarray([f[0] for f in families])
    prompt = pieces.firsts_R[first]
    # Where each completion begins in its family's row.
    before = np.cumsum(own[rows]) - own[rows]
    begin = prompt[family_of] + before - before[np.searchsorted(family_of, family_of)]
    width = int((begin + own[rows]).max())
    tokens, branches = (np.full((len(families), width), -1) for _ in range(2))
    at = np.arange(width)
    family, t = np.nonzero(at < prompt[:, None])
    tokens[family, t] = pieces.prompt_base_R[first][family] + t
    row = np.repeat(np.arange(len(rows)), own[rows])
    t = np.arange(len(row)) - np.repeat(before, own[rows])
    tokens[family_of[row], begin[row] + t] = (pieces.own_base_R + pieces.firsts_R)[rows[row]] + t
    branches[family_of[row], begin[row] + t] = row
    tokens = tokens[:, None]
    return _Planned(
        tokens=tokens, prompts=np.zeros((len(families), 0), np.int64), counted=tokens >= 0, branches=branches
    )


def _plain(pieces: Pieces, rows: Places, counted_from: Places) -> _Planned:
    """Rows from their first tokens on."""
    width = int(pieces.lasts_R[rows].max())
    t = np.broadcast_to(np.arange(width), (len(rows), width))
    inside = t < pieces.lasts_R[rows][:, None]
    row = np.broadcast_to(rows[:, None], t.shape)
    tokens = np.where(inside, pieces.place(row, t), -1)[:, None]
    counted = (inside & (t >= counted_from[rows][:, None]))[:, None]
    return _Planned(tokens=tokens, prompts=np.zeros((len(rows), 0), np.int64), counted=counted)


def _clustered(pieces: Pieces, clusters: Sequence[Places], own: Places) -> _Planned:
    """Clusters side by side."""
    most = max(len(rows) for rows in clusters)
    row = np.full((len(clusters), most), -1)
    for place, rows in enumerate(clusters):
        row[place, : len(rows)] = rows
    width = int(own[row[row >= 0]].max())
    t = pieces.firsts_R[row][:, :, None] + np.arange(width)
    inside = (t < pieces.lasts_R[row][:, :, None]) & (row >= 0)[:, :, None]
    tokens = np.where(inside, pieces.place(np.broadcast_to(row[:, :, None], t.shape), t), -1)
    first = row[:, 0]
    at = np.arange(int(pieces.firsts_R[first].max()))
    known = at < pieces.firsts_R[first][:, None]
    prompts = np.where(known, pieces.prompt_base_R[first][:, None] + at, -1)
    return _Planned(tokens=tokens, prompts=prompts, counted=inside)


def _alike(clusters: Sequence[Places], own: Places, firsts: Places) -> Iterator[list[Places]]:
    """Clusters for one block each: padding to the largest of a block at most doubles its scores, or costs little."""

    def sizes(rows: Places) -> tuple[int, int, int]:
        return len(rows), int(own[rows].max()), int(firsts[rows[0]])

    together: list[Places] = []
    largest, real = (0, 0, 0), 0
    for rows in sorted(clusters, key=lambda rows: (*(-n for n in sizes(rows)), int(rows[0]))):
        count, width, prompt = sizes(rows)
        new = max(largest[0], count), max(largest[1], width), max(largest[2], prompt)
        padded = (len(together) + 1) * new[0] * new[1] * (new[1] + new[2])
        scores = real + count * width * (width + prompt)
        if together and (padded > 16 * WIDE or padded - scores > max(scores, SPARE)):
            yield together
            together, new, scores = [], (count, width, prompt), count * width * (width + prompt)
        together.append(rows)
        largest, real = new, scores
    if together:
        yield together


def blocks_of(rows: Places, lengths: Places) -> list[Places]:
    """Rows by length, longest first, cut where a row is shorter than half of its block (unless all are short)."""
    order = rows[np.argsort(-lengths[rows], kind="stable")]
    blocks: list[Places] = []
    start = 0
    for i in range(1, len(order) + 1):
        longest = lengths[order[start]]
        if i == len(order) or (longest > SHORT and 2 * lengths[order[i]] < longest):
            blocks.append(order[start:i])
            start = i
    return blocks


def gather_index(index: Places, size: int, device: torch.device) -> GatherIndex:
    """``index`` into ``size`` rows; -1 is padding, which reads row 0 and gives nothing back."""
    bag, starts = _transposed(index, size)
    return GatherIndex(
        index=torch.from_numpy(np.maximum(index, 0)).to(device),
        bag=torch.from_numpy(bag).to(device),
        bag_starts=torch.from_numpy(starts).to(device),
    )


def _transposed(index: Places, size: int) -> tuple[Places, Places]:
    """The bag of a gather, and where each row's part of it begins."""
    bag = np.argsort(index, kind="stable")
    bag = bag[int((index < 0).sum()) :]
    return bag, np.searchsorted(index[bag], np.arange(size))
