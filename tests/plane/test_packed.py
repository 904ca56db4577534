"""Packing: whatever groups there are come back to the bit, whole or in part, as views."""

import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.plane.packed import pack, unpack
from stretto.testing import make_group, same
from stretto.types import Key, Message, Span


@st.composite
def groups(draw):
    made = []
    for number in range(draw(st.integers(0, 5))):
        size = draw(st.integers(0, 4))
        group = make_group(number, [float(i) for i in range(size)], draw(st.integers(0, 6)), draw(st.integers(0, 3)))
        rows = [
            replace(
                t,
                key=Key(
                    number, t.key.sample, part=draw(st.integers(0, 2)), model=draw(st.sampled_from(("policy", "b")))
                ),
                text=draw(st.text(max_size=5)),
                info=draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
                versions=(*t.versions, Span(9, 0)),
                reward=draw(st.sampled_from((None, 0.1, -1e300))),
            )
            for t in group.trajectories
        ]
        prompt = replace(
            group.prompt,
            token_ids=np.arange(draw(st.integers(0, 4)), dtype=np.int32),
            messages=(Message(role="user", content=draw(st.text(max_size=4))),),
            data={"answer": 2**70, "é": None},
        )
        made.append(replace(group, prompt=prompt, trajectories=tuple(rows)))
    return made


@settings(max_examples=300, deadline=None)
@given(groups(), st.data())
def test_groups_come_back_to_the_bit(made, data):
    packed = pickle.loads(pickle.dumps(pack(made), 5))
    found = unpack(packed)
    assert len(found) == len(made)
    start = data.draw(st.integers(0, len(made)))
    count = data.draw(st.integers(0, len(made) - start))
    part = unpack(packed, start, count)
    for a, b in [*zip(made, found, strict=True), *zip(made[start : start + count], part, strict=True)]:
        assert same(a, b)
        assert (a.prompt.data, a.prompt.messages) == (b.prompt.data, b.prompt.messages)
        assert a.prompt.token_ids.tolist() == b.prompt.token_ids.tolist()
        for s, t in zip(a.trajectories, b.trajectories, strict=True):
            assert s.info == t.info and s.mask_T.tobytes() == t.mask_T.tobytes()
            assert (t.token_ids_T.dtype, t.mask_T.dtype, t.logprobs_T.dtype) == (np.int32, np.uint8, np.float32)


def test_what_is_read_is_a_view():
    packed = pack([make_group(0), make_group(1)])
    for group in unpack(packed):
        for t in group.trajectories:
            assert np.shares_memory(t.token_ids_T, packed.token_ids) and np.shares_memory(t.logprobs_T, packed.logprobs)
