"""Micro-batches: several trajectories as one row of tokens, each needed token once. Owns what is computed and where it
sits; knows nothing of Models.

Three things are left out of the forward pass because nothing depends on them: tokens after the last written one, that
last one itself (it predicts nothing), and repeated prompts: trajectories of a micro-batch whose prompts are equal share
one copy. Every trajectory attends to it as to its own (``layout``), so sharing is exact.

Shapes: M tokens of the packed row, N written tokens of the micro-batch, predicted from P of the M.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stretto.backends.torch.layout import AttentionLayout, GatherIndex, Pieces, gather_index
from stretto.backends.torch.planning import RowSizes, plan_packs, share_rows
from stretto.backends.torch.ranks import WHOLE, Cut
from stretto.errors import DataError
from stretto.types import Batch, Group, Key, Prompt, Span, Trajectory

__all__ = ["Microbatches", "Pack", "idle_pack", "microbatches"]

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pack:
    """One micro-batch. ``predicting_P`` are the places that predict a written token, each once and in order: states of
    others are not needed after the last attention. ``source`` gathers from them the state that predicts each written
    token; ``targets_N`` are those tokens, ``flat_N`` their places in the batch's per-token Columns, ``rows_N`` their
    rows among the ``num_rows`` of the micro-batch, ``groups_R`` the groups of these among ``num_groups``,
    ``inverse_temperature_N`` what scales logits."""

    input_ids_M: Tensor
    position_ids_M: Tensor
    layout: AttentionLayout
    predicting_P: Tensor
    source: GatherIndex
    targets_N: Tensor
    flat_N: Tensor
    rows_N: Tensor
    num_rows: int
    groups_R: Tensor
    num_groups: int
    inverse_temperature_N: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Facts of all B trajectories: their place, first and last written token, and the identity of their prompts."""

    tokens: NDArray[np.int32]
    written: Places
    written_row: Places
    starts_B: Places
    firsts_B: Places
    lasts_B: Places
    prompts_B: Places
    draws_B: Places
    inverse_temperature_B: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Microbatches:
    """Packs, each made when its turn comes; how many there are is known before."""

    _rows: _Rows
    _chosen: Sequence[Places]
    _device: torch.device

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[Pack]:
        return (_pack(self._rows, chosen, self._device) for chosen in self._chosen)


def microbatches(
    batch: Batch, budget: int, device: torch.device, unit: Literal["row", "group"] = "row", share: Cut = WHOLE
) -> Microbatches:
    """Cut ``batch`` in key order into packs of at most ``budget`` computed tokens; what is longer goes alone.

    A group is cut only where it is over the budget, and not at all for ``unit`` "group". Trajectories without a written
    token are left out. One that begins with a written token is a DataError. ``share``: the ranks among which rows are
    shared out, and whose packs these are.
    """
    rows = _facts(batch)
    there = np.flatnonzero(rows.lasts_B >= 0)
    sizes = RowSizes(
        groups_B=rows.draws_B[there],
        prompts_B=rows.prompts_B[there],
        prompt_tokens_B=rows.firsts_B[there],
        own_tokens_B=(rows.lasts_B - rows.firsts_B)[there],
    )
    whole = unit == "group"
    if share.parts > 1:
        mine = np.asarray(share_rows(sizes, share.parts, whole=whole)[share.place], np.int64)
        sizes, there = sizes.of(mine), there[mine]
    return Microbatches(rows, [there[chosen] for chosen in plan_packs(sizes, budget, whole=whole)], device)


def idle_pack(device: torch.device) -> Pack:
    """Two tokens, for a rank that has to compute something because others do."""
    trajectory = Trajectory(
        key=Key(0, 0),
        token_ids_T=np.zeros(2, np.int32),
        mask_T=np.array([0, 1], np.uint8),
        logprobs_T=np.zeros(2, np.float32),
        versions=(Span(0, 1),),
        finish="length",
        temperature=1.0,
    )
    prompt = Prompt(uid="idle", text="", token_ids=trajectory.token_ids_T[:1])
    (pack,) = microbatches(Batch(groups=(Group(draw=0, prompt=prompt, trajectories=(trajectory,)),)), 2, device)
    return pack


def _facts(batch: Batch) -> _Rows:
    trajectories = batch.trajectories
    starts = batch.offsets[:-1]
    written = np.flatnonzero(batch.mask)
    row = np.repeat(np.arange(len(trajectories)), np.diff(batch.offsets))[written]
    firsts, lasts = np.full(len(trajectories), -1), np.full(len(trajectories), -1)
    place = written - starts[row]
    lasts[row] = place
    firsts[row[::-1]] = place[::-1]
    known: dict[bytes, int] = {}
    prompts = np.zeros(len(trajectories), np.int64)
    for b, t in enumerate(trajectories):
        if firsts[b] == 0:
            raise DataError(
                f"trajectory {t.key} begins with a token that the policy wrote, and a token with nothing before it "
                "has no log-prob. Begin prompts with a BOS token."
            )
        prompts[b] = known.setdefault(t.token_ids_T[: max(firsts[b], 0)].tobytes(), len(known))
    return _Rows(
        tokens=np.concatenate([t.token_ids_T for t in trajectories]) if trajectories else np.zeros(0, np.int32),
        written=written,
        written_row=row,
        starts_B=starts,
        firsts_B=firsts,
        lasts_B=lasts,
        prompts_B=prompts,
        draws_B=np.asarray([t.key.draw for t in trajectories], np.int64),
        # A greedy trajectory (temperature 0) has log-probs at temperature 1.
        inverse_temperature_B=np.asarray([1.0 / (t.temperature or 1.0) for t in trajectories], np.float32),
    )


def _pack(rows: _Rows, chosen: Places, device: torch.device) -> Pack:
    firsts, lasts, starts = rows.firsts_B[chosen], rows.lasts_B[chosen], rows.starts_B[chosen]
    _, owner, prompt = np.unique(rows.prompts_B[chosen], return_index=True, return_inverse=True)
    owns = np.zeros(len(chosen), bool)
    owns[owner] = True
    begin = np.where(owns, 0, firsts)
    lengths = lasts - begin
    ends = np.cumsum(lengths)
    # The packed place of token t of a row is prompt_base + t inside the prompt and own_base + t after it.
    own_base = ends - lengths - begin
    prompt_base = own_base[owner][prompt]
    row_M = np.repeat(np.arange(len(chosen)), lengths)
    position_M = np.arange(int(ends[-1])) - own_base[row_M]

    pieces = Pieces(
        firsts_R=firsts,
        lasts_R=lasts,
        prompt_base_R=prompt_base,
        own_base_R=own_base,
        prompts_R=rows.prompts_B[chosen],
    )
    in_pack = np.full(len(rows.starts_B), -1)
    in_pack[chosen] = np.arange(len(chosen))
    kept = in_pack[rows.written_row] >= 0
    flat_N, row_N = rows.written[kept], in_pack[rows.written_row[kept]]
    predicting, source_N = np.unique(pieces.place(row_N, flat_N - starts[row_N] - 1), return_inverse=True)
    groups = np.unique(rows.draws_B[chosen], return_inverse=True)[1]

    def send(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    tokens = rows.tokens.astype(np.int64)
    return Pack(
        input_ids_M=send(tokens[starts[row_M] + position_M]),
        position_ids_M=send(position_M),
        layout=AttentionLayout(pieces, len(row_M), device),
        predicting_P=send(predicting),
        source=gather_index(source_N, len(predicting), device),
        targets_N=send(tokens[flat_N]),
        flat_N=send(flat_N),
        rows_N=send(row_N),
        num_rows=len(chosen),
        groups_R=send(groups),
        num_groups=int(groups.max()) + 1,
        inverse_temperature_N=send(rows.inverse_temperature_B[chosen][row_N]),
    )
