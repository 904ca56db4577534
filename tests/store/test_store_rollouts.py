from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stretto.errors import StoreError
from stretto.store import decode_group, encode_group, read_groups, write_groups
from stretto.types import Group, Key, Message, Prompt, Span, Trajectory

finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(max_size=12)
ints = hnp.arrays(np.int32, st.integers(0, 6), elements=st.integers(-(2**31), 2**31 - 1))
json_maps = st.dictionaries(
    text, st.none() | st.booleans() | st.integers() | finite | text | st.lists(text), max_size=3
)


@st.composite
def trajectories(draw):
    length = draw(st.integers(0, 8))
    return Trajectory(
        key=Key(draw(st.integers(0, 2**50)), draw(st.integers(0, 9)), draw(st.integers(0, 3)), draw(text)),
        token_ids_T=draw(hnp.arrays(np.int32, length)),
        mask_T=draw(hnp.arrays(np.uint8, length, elements=st.integers(0, 1))),
        logprobs_T=draw(
            hnp.arrays(np.float32, length, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
        ),
        versions=tuple(Span(v, n) for v, n in draw(st.lists(st.tuples(st.integers(0), st.integers(0)), max_size=3))),
        finish=draw(st.sampled_from(["stop", "length", "env", "aborted"])),
        text=draw(text),
        temperature=draw(finite),
        rewards=draw(st.dictionaries(text, st.none() | finite, max_size=3)),
        reward=draw(st.none() | finite),
        info=draw(json_maps),
    )


groups = st.builds(
    Group,
    draw=st.integers(0, 2**50),
    prompt=st.builds(
        Prompt,
        uid=text,
        text=text,
        token_ids=ints,
        data=json_maps,
        messages=st.none() | st.lists(st.builds(Message, role=text, content=text), max_size=2).map(tuple),
        media=st.lists(text, max_size=2).map(tuple),
    ),
    trajectories=st.lists(trajectories(), max_size=4).map(tuple),
)


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, Group | Prompt | Trajectory):
        return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in a.__slots__)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b)


@settings(deadline=None)
@given(groups)
def test_a_group_comes_back_to_the_bit(group):
    line = encode_group(group)
    assert "\n" not in line
    assert line.isascii()
    assert same(decode_group(line), group)
    assert encode_group(decode_group(line)) == line


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_recorded(make_group, bad):
    # pitfall 23
    group = make_group(7)
    first, *rest = group.trajectories
    logprobs = first.logprobs_T.copy()
    logprobs[-1] = bad
    with pytest.raises(StoreError, match="draw 7 has a log-prob that is not finite"):
        encode_group(replace(group, trajectories=(replace(first, logprobs_T=logprobs), *rest)))
    with pytest.raises(StoreError, match=r"draw 7 \(prompt 'p7'\) cannot be recorded"):
        encode_group(replace(group, trajectories=(replace(first, reward=float(bad)), *rest)))


def test_info_that_is_not_json_is_refused(make_group):
    group = make_group(7)
    odd = replace(group.trajectories[0], info={"x": object()})
    with pytest.raises(StoreError, match="a object is not a JSON value"):
        encode_group(replace(group, trajectories=(odd,)))


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"draw":1}'])
def test_what_is_no_group_is_refused(line):
    with pytest.raises(StoreError, match="not a recorded group"):
        decode_group(line)


def test_a_damaged_row_is_refused(make_group):
    line = encode_group(make_group(1))
    with pytest.raises(StoreError, match="not a recorded group"):
        decode_group(line.replace('"mask":"0', '"mask":"'))


def test_a_file_of_groups(tmp_path, make_group):
    path = tmp_path / "groups.jsonl"
    made = tuple(make_group(draw) for draw in range(3))
    write_groups(path, made)
    assert same(read_groups(path), made)
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(StoreError, match=r"groups\.jsonl, line 1: not a recorded group"):
        read_groups(path)
