import json
import math
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import StoreError
from stretto.store import (
    AttemptBody,
    Body,
    CheckpointBody,
    EndBody,
    ErrorBody,
    EvalBody,
    Event,
    EventKind,
    Example,
    GroupBody,
    NodeBody,
    NodeTime,
    PhaseBody,
    PublishBody,
    ResumedFrom,
    RunBody,
    SettingBody,
    StepBody,
)
from stretto.store.events import decode_event, encode_event

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**40)
text = st.text(max_size=20)
metrics = st.dictionaries(st.text(max_size=8), st.floats(), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | counts | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
node_states = st.sampled_from(["done", "failed", "cancelled"])
node_times = st.builds(NodeTime, id=text, start_s=finite, duration_s=finite, state=node_states)
bodies = st.one_of(
    st.builds(RunBody, name=text, seed=counts, steps=st.none() | counts),
    st.builds(
        AttemptBody,
        attempt=counts,
        pid=counts,
        host=text,
        resumed_from=st.none() | st.builds(ResumedFrom, phase=text, steps_done=counts, seq=counts),
    ),
    st.builds(PhaseBody, state=st.sampled_from(["start", "end"]), workflow=text, steps=st.none() | counts, reason=text),
    st.builds(
        NodeBody,
        id=text,
        world=st.sampled_from(["group", "step"]),
        state=node_states,
        start_s=finite,
        duration_s=finite,
        draw=st.none() | counts,
    ),
    st.builds(
        GroupBody,
        draw=counts,
        uid=text,
        n=counts,
        state=st.sampled_from(["finished", "dropped"]),
        why=text,
        reward_mean=st.none() | st.floats(),
        nodes=st.lists(node_times, max_size=3).map(tuple),
    ),
    st.builds(StepBody, metrics=metrics, cpu_s=finite),
    st.builds(
        EvalBody,
        name=text,
        accuracy=st.floats(),
        n=counts,
        metrics=metrics,
        examples=st.lists(
            st.builds(Example, uid=text, prompt=text, completion=text, answer=json_values, reward=st.none() | finite),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(PublishBody, version=counts, duration_s=finite, bytes=counts),
    st.builds(CheckpointBody, path=text, bytes=counts, duration_s=finite, metrics=metrics),
    st.builds(SettingBody, key=text, old=st.none() | finite | text | st.booleans(), new=counts),
    st.builds(ErrorBody, type=text, message=text, where=text, traceback=text),
    st.builds(
        EndBody, status=st.sampled_from(["done", "failed", "interrupted"]), wall_s=finite, cpu_s=finite, reason=text
    ),
)
events = st.builds(
    Event,
    seq=counts,
    time_s=finite,
    attempt=counts,
    body=bodies,
    phase=st.none() | text,
    step=st.none() | counts,
    version=st.none() | counts,
    schema=st.just(1),
)


@settings(deadline=None)
@given(events)
def test_an_event_comes_back_from_its_line(event):
    line = encode_event(event)
    assert "\n" not in line
    assert line.isascii()
    back = decode_event(line)
    assert repr(back) == repr(event)  # repr: NaN equals itself
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_every_kind_has_a_body():
    assert {body.kind for body in get_args(Body)} == set(get_args(EventKind))


def test_numbers_that_json_cannot_hold_are_strings():
    # pitfall 23
    body = StepBody(metrics={"loss": math.nan, "a": math.inf, "b": -math.inf, "c": 1.5})
    line = encode_event(Event(seq=0, time_s=0.0, attempt=1, body=body))
    assert json.loads(line)["body"]["metrics"] == {"loss": "NaN", "a": "Infinity", "b": "-Infinity", "c": 1.5}


def test_numpy_scalars_are_numbers():
    body = StepBody(metrics={"loss": np.float32(0.5), "n": np.int64(3)})
    line = encode_event(Event(seq=0, time_s=0.0, attempt=1, body=body))
    assert json.loads(line)["body"]["metrics"] == {"loss": 0.5, "n": 3}


def test_a_newer_schema_is_refused():
    line = encode_event(Event(seq=0, time_s=0.0, attempt=1, body=StepBody(metrics={}), schema=2))
    with pytest.raises(StoreError, match=r"event schema 2 is newer than 1, .* Upgrade stretto"):
        decode_event(line)


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"schema":1,"kind":"walk","body":{}}', "null", '"x"'])
def test_what_is_no_event_is_refused(line):
    with pytest.raises(StoreError, match="not an event of schema 1"):
        decode_event(line)


def test_the_document_names_every_kind_and_key():
    document = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    for body in get_args(Body):
        section = document.split(f"### `{body.kind}`")[1].split("###")[0]
        for field in fields(body):
            assert f"`{field.name}`" in section, (body.kind, field.name)
    for field in fields(Event):
        assert f"`{field.name}`" in document
    for inner in (NodeTime, Example, ResumedFrom):
        for field in fields(inner):
            assert f"`{field.name}`" in document
