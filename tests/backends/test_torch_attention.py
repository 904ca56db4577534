"""Shared-prefix attention: every token's output and gradient are those of its own sequence alone."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.backends.torch import attention, layout
from stretto.backends.torch.attention import attend
from stretto.backends.torch.packing import microbatches

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM = 6, 2, 8


def alone(batch, pack, query, key, value):
    """Attention of each trajectory by itself, every packed token's output from one that has it."""
    found = {}
    spelled = pack.layout.spelled
    start = 0
    for rows, width in spelled.blocks:
        for row in range(rows):
            part = slice(start + row * width, start + (row + 1) * width)
            real = torch.zeros(len(spelled.pad.index), dtype=torch.bool)
            real[spelled.pad.bag] = True
            places = spelled.pad.index[part][real[part]]
            q, k, v = (x[places].transpose(0, 1)[None] for x in (query, key, value))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            for place, output in zip(places.tolist(), out[0].transpose(0, 1), strict=True):
                found.setdefault(place, output)
        start += rows * width
    return torch.stack([found[m] for m in range(len(pack.input_ids_M))])


def check(batch, seed):
    for pack in microbatches(batch, 10_000, CPU):
        draw = torch.Generator().manual_seed(seed)
        count = len(pack.input_ids_M)
        inputs = [
            torch.randn(count, heads, DIM, generator=draw).requires_grad_() for heads in (HEADS, KV_HEADS, KV_HEADS)
        ]
        ours, plain = attend(*inputs, pack.layout), alone(batch, pack, *inputs)
        torch.testing.assert_close(ours, plain, rtol=0, atol=2e-6)
        back = torch.randn(ours.shape, generator=draw)
        for got, want in zip(
            torch.autograd.grad(ours, inputs, back), torch.autograd.grad(plain, inputs, back), strict=True
        ):
            assert float((got - want).norm()) <= 1e-6 * float(want.norm() + back.norm())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 5),
    siblings=st.integers(1, 6),
    longest=st.integers(2, 60),
    wide=st.sampled_from([1, 400, 2**17]),
    flash_from=st.sampled_from([1, 20, 96]),
    spare=st.sampled_from([0, 2**15]),
    small=st.sampled_from([0, 30, 96]),
)
def test_every_layout_is_exact(random_batch, seed, groups, siblings, longest, wide, flash_from, spare, small):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "WIDE", wide)
        patch.setattr(layout, "SPARE", spare)
        patch.setattr(layout, "SMALL", small)
        patch.setattr(attention, "_FLASH_FROM", flash_from)
        check(random_batch(seed, groups=groups, siblings=siblings, longest=longest), seed)


def test_a_prompt_is_attended_from_once(random_batch):
    """Queries are the packed tokens and no more than their padding: no prompt is written out for a sibling."""
    (pack,) = microbatches(random_batch(1, groups=1, siblings=8, longest=40, gaps=False), 10_000, CPU)
    blocks = pack.layout.shared(HEADS, KV_HEADS).blocks
    prompt = int(pack.position_ids_M[pack.input_ids_M.shape[0] - 1])
    assert sum(block.clusters * block.own for block in blocks if not block.prompt) <= prompt
    assert sum(block.clusters * block.rows for block in blocks if block.prompt) <= 8
    assert sum(block.clusters for block in blocks if block.prompt) <= 3
