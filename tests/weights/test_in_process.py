"""Publication: one drained window, every tensor to every engine, and a version that is checked afterwards."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

from stretto.errors import EngineError
from stretto.roles import EngineStatus, NamedTensor, WeightSync
from stretto.weights.in_process import InProcessSync


class RecordingEngine:
    """As much of an engine as publication touches. ``version_after`` makes it end up elsewhere than it was told."""

    def __init__(self, refuses=(), version_after=None, healthy=True):
        self.held: dict[str, torch.Tensor] = {}
        self.windows: list[tuple[int, str]] = []
        self.cleared: list[tuple[tuple[str, ...], dict[str, torch.Tensor]]] = []
        self.version = -1
        self._refuses, self._version_after, self._healthy = refuses, version_after, healthy

    @asynccontextmanager
    async def update_weights(self, version, *, in_flight):
        self.windows.append((version, in_flight))
        yield self
        self.version = version if self._version_after is None else self._version_after

    def clear(self, patterns):
        self.cleared.append((patterns, dict(self.held)))

    def write(self, tensor):
        if tensor.name in self._refuses:
            raise EngineError(f"there is no tensor {tensor.name!r}")
        self.held[tensor.name] = tensor.data.clone()

    async def status(self):
        return EngineStatus(version=self.version, healthy=self._healthy, pending={})

    def generate(self, request):
        raise AssertionError(request)

    async def abort(self, ids):
        raise AssertionError(ids)

    async def set_memory(self, level):
        raise AssertionError(level)

    async def close(self):
        raise AssertionError


def tensors():
    return [
        NamedTensor(name="a", data=torch.arange(6.0).reshape(2, 3).t()),
        NamedTensor(name="b", data=torch.ones(4, dtype=torch.bfloat16)),
        NamedTensor(name="c", data=torch.tensor(3.0)),
    ]


def publish(sync, version, sent, engines, **settings):
    return asyncio.run(sync.publish(version, iter(sent), engines, **settings))


def test_what_is_to_be_cleared_is_cleared_before_anything_is_written():
    engine = RecordingEngine()
    publish(InProcessSync(), 0, tensors(), [engine])
    assert engine.cleared == []
    other = RecordingEngine()
    publish(InProcessSync(), 0, tensors(), [other], clear=("*",))
    assert other.cleared == [(("*",), {})] and other.held


def test_every_engine_gets_every_tensor_in_one_drained_window():
    sync, engines = InProcessSync(), [RecordingEngine(), RecordingEngine()]
    metrics = publish(sync, 3, tensors(), engines)
    for engine in engines:
        assert engine.windows == [(3, "drain")]
        assert engine.version == 3
        assert all(torch.equal(engine.held[t.name], t.data) for t in tensors())
    assert metrics["publish/bytes"].value == 6 * 4 + 4 * 2 + 4
    assert metrics["time/publish_s"].value > 0
    is_sync: WeightSync = sync
    assert is_sync is sync


def test_the_checksum_is_of_names_and_bytes():
    def checksum(sent):
        sync = InProcessSync()
        assert sync.checksum == ""
        publish(sync, 0, sent, [RecordingEngine()])
        return sync.checksum

    one, a_bit_else = tensors(), tensors()
    a_bit_else[1].data[2] = 1.0078125
    assert checksum(one) == checksum(tensors())
    assert checksum(one) != checksum(a_bit_else)
    assert checksum(one[:1]) != checksum([NamedTensor(name="z", data=one[0].data)])
    arrays = [NamedTensor(name=t.name, data=t.data.float().numpy()) for t in one]
    floats = [NamedTensor(name=t.name, data=t.data.float()) for t in one]
    assert isinstance(arrays[0].data, np.ndarray)
    sync = InProcessSync()
    publish(sync, 0, floats, [])
    of_floats = sync.checksum
    publish(sync, 0, arrays, [])
    assert sync.checksum == of_floats


def test_a_refused_tensor_fails_with_its_cause():  # pitfall 19
    with pytest.raises(
        EngineError, match=r"publishing version 2 of the weights failed: there is no tensor 'b'"
    ) as caught:
        publish(InProcessSync(), 2, tensors(), [RecordingEngine(refuses=("b",))])
    assert isinstance(caught.value.__cause__, EngineError)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (RecordingEngine(version_after=1), r"engine 0 holds version 1 \(healthy\) after version 2 was published"),
        (RecordingEngine(healthy=False), r"engine 0 holds version 2 \(unhealthy\)"),
    ],
)
def test_an_engine_that_stands_elsewhere_is_named(engine, message):  # pitfall 19
    sync = InProcessSync()
    with pytest.raises(EngineError, match=message):
        publish(sync, 2, tensors(), [engine])
    assert sync.checksum == ""
