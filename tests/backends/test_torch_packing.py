"""Micro-batches: every written token once, in order, within the budget, from the right place."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.torch.packing import microbatches
from stretto.errors import DataError
from stretto.types import Batch, Group

CPU = torch.device("cpu")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 200), longest=st.integers(2, 80))
def test_packs_are_the_batch(random_batch, seed, budget, longest):
    batch = random_batch(seed, groups=4, siblings=3, longest=longest)
    tokens = np.concatenate([t.token_ids_T for t in batch.trajectories])
    row = np.repeat(np.arange(len(batch.keys)), np.diff(batch.offsets))
    packs = list(microbatches(batch, budget, CPU))
    flat = np.concatenate([p.flat_N.numpy() for p in packs])
    assert flat.tolist() == np.flatnonzero(batch.mask).tolist()
    for pack in packs:
        places = pack.flat_N.numpy()
        assert pack.targets_N.tolist() == tokens[places].tolist()
        rows = set(row[places].tolist())
        assert len(pack.input_ids_M) <= budget or len(rows) == 1
        # spelled out again, each row is its own tokens from the first to the one before its last written one
        spelled = _spelled(pack)
        expected = []
        for r in sorted(rows):
            last = np.flatnonzero(batch.trajectories[r].mask_T)[-1]
            expected.append(batch.trajectories[r].token_ids_T[:last].tolist())
        assert all(s in expected for s in spelled)
        # the state that predicts a token has read what stands before it
        source = pack.predicting_P.numpy()[pack.source.index.numpy()]
        assert len(set(pack.predicting_P.tolist())) == len(pack.predicting_P)
        before = places - batch.offsets[row[places]] - 1
        assert pack.position_ids_M.numpy()[source].tolist() == before.tolist()
        assert pack.input_ids_M.numpy()[source].tolist() == tokens[places - 1].tolist()
        _transpose_holds(pack.source, len(pack.predicting_P))
        picked = pack.layout.spelled.pad.index[pack.layout.spelled.unpad]
        assert picked.tolist() == list(range(len(pack.input_ids_M)))


def _spelled(pack):
    """Token ids of every attention row without its padding (padding reads place 0 and is in no bag)."""
    real = torch.zeros(len(pack.layout.spelled.pad.index), dtype=torch.bool)
    real[pack.layout.spelled.pad.bag] = True
    ids = pack.input_ids_M[pack.layout.spelled.pad.index]
    rows, start = [], 0
    for count, width in pack.layout.spelled.blocks:
        for i in range(count):
            part = slice(start + i * width, start + (i + 1) * width)
            length = int(real[part].sum())
            assert real[part][:length].all(), "padding stands to the right"
            rows.append(ids[part][:length].tolist())
        start += count * width
    return rows


def _transpose_holds(gather, size):
    starts = [*gather.bag_starts.tolist(), len(gather.bag)]
    for m in range(size):
        for place in gather.bag[starts[m] : starts[m + 1]].tolist():
            assert gather.index[place] == m


def test_siblings_share_their_prompt(random_batch):
    batch = random_batch(3, groups=1, siblings=6, longest=9, gaps=False)
    prompt = len(batch.groups[0].prompt.token_ids)
    (pack,) = microbatches(batch, 4096, CPU)
    written = [t.num_written for t in batch.trajectories]
    assert len(pack.input_ids_M) == prompt + sum(w - 1 for w in written)


def test_rows_without_a_written_token_are_left_out(random_batch):
    batch = random_batch(1, groups=1, siblings=2, gaps=False)
    (group,) = batch.groups
    silent = replace(group.trajectories[1], mask_T=np.zeros_like(group.trajectories[1].mask_T))
    batch = Batch(groups=(replace(group, trajectories=(group.trajectories[0], silent)),))
    (pack,) = microbatches(batch, 4096, CPU)
    assert len(pack.targets_N) == group.trajectories[0].num_written
    nothing = Batch(groups=(replace(group, trajectories=(silent,)),))
    assert list(microbatches(nothing, 4096, CPU)) == []
    assert list(microbatches(Batch(groups=()), 4096, CPU)) == []


def test_a_row_that_begins_with_a_written_token_is_refused(random_batch):
    (group,) = random_batch(1, groups=1, siblings=1).groups
    bad = replace(group.trajectories[0], mask_T=np.ones_like(group.trajectories[0].mask_T))
    batch = Batch(groups=(Group(draw=0, prompt=group.prompt, trajectories=(bad,)),))
    with pytest.raises(DataError, match=r"begins with a token that the policy wrote.*BOS"):
        list(microbatches(batch, 10, CPU))
