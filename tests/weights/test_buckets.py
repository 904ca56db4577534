"""Buckets: what is written is what was sent, to the bit, in order; other bytes are refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import EngineError
from stretto.roles import NamedTensor
from stretto.weights.buckets import fill_buckets, write_bucket

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


class Sink:
    def __init__(self) -> None:
        self.got: list[NamedTensor] = []

    def clear(self, patterns) -> None:
        raise AssertionError

    def write(self, tensor: NamedTensor) -> None:
        data = tensor.data
        self.got.append(NamedTensor(name=tensor.name, data=data.clone() if hasattr(data, "clone") else data.copy()))


def bits(tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=8), st.integers(1, 400), st.booleans())
def test_tensors_come_through_to_the_bit(kinds, limit, turned):
    made = [torch.randn(shape).mul(100).to(dtype) for shape, dtype in kinds]
    made = [t.T if turned and t.dim() == 2 else t for t in made]
    sink, sizes = Sink(), []
    for bucket, data in fill_buckets((NamedTensor(name=f"w{i}", data=t) for i, t in enumerate(made)), limit):
        data.setflags(write=False)  # as it comes out of shared memory
        sizes.append(len(bucket.tensors))
        assert len(bucket.tensors) == 1 or sum(p.num_bytes for p in bucket.tensors) <= limit
        write_bucket(bucket, data, sink)
    assert sum(sizes) == len(made)
    assert [t.name for t in sink.got] == [f"w{i}" for i in range(len(made))]
    for sent, got in zip(made, sink.got, strict=True):
        assert got.data.dtype == sent.dtype and got.data.shape == sent.shape
        assert bits(got.data) == bits(sent)


def test_arrays_come_through_as_arrays():
    sink = Sink()
    for bucket, data in fill_buckets([NamedTensor(name="weight", data=np.arange(6.0).reshape(2, 3))]):
        write_bucket(bucket, data, sink)
    assert isinstance(sink.got[0].data, np.ndarray) and sink.got[0].data.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_other_bytes_than_were_sent_are_refused():
    ((bucket, data),) = fill_buckets([NamedTensor(name="w", data=torch.ones(8))])
    data[3] ^= 1
    with pytest.raises(EngineError, match=r"other bytes than were sent .*w and 0 more"):
        write_bucket(bucket, data, Sink())
