"""Engine and trainer that take turns with memory: in which order, how much is left, and that no bit depends on it."""

import asyncio

import psutil
import pytest
import torch
from small_runs import recipe

from stretto.api.runs import resume, start
from stretto.backends.torch.shelf import Shelf
from stretto.config.sections import OffloadConfig
from stretto.errors import ConfigError, Interrupted
from stretto.runtime.colocation import Colocation
from stretto.store import compare_runs


class Recording:
    """An engine, worker and backend in one: what was asked of them, in order."""

    def __init__(self):
        self.calls = []
        self.backend = self

    def set_memory(self, level):
        """The backend's is called on the worker, the engine's is awaited."""
        self.calls.append(f"trainer {level}")

    @property
    def models(self):
        return self

    async def call(self, function, *arguments):
        return function(self, *arguments)


class RecordingRollers:
    def __init__(self, calls):
        self.calls = calls

    async def set_memory(self, level):
        self.calls.append(f"engine {level}")


def colocated(**settings):
    worker = Recording()
    return Colocation(
        RecordingRollers(worker.calls), worker, OffloadConfig(**settings), peak=lambda: 2**21
    ), worker.calls


def test_wake_publish_and_sleep_come_in_order():
    offload, calls = colocated(engine="weights", trainer="weights", to="disk")

    async def step():
        async with offload.publishing():
            calls.append("publish")
        calls.append("sample")
        async with offload.scoring():
            calls.append("score")
        await offload.train()
        await offload.train()
        calls.append("train")
        async with offload.publishing():
            calls.append("publish")

    asyncio.run(step())
    awake = ["publish", "trainer weights_released", "engine awake"]
    assert calls == [
        "engine kv_released",
        *awake,
        "sample",
        *["engine kv_released", "trainer optimizer_released", "score", "trainer weights_released", "engine awake"],
        *["engine weights_released", "trainer awake", "train"],
        "engine kv_released",
        *awake,
    ]
    assert offload.peaks() == {"memory/rollout_mb": 2.0, "memory/train_mb": 2.0, "memory/publish_mb": 2.0}
    assert offload.peaks() == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["publish", "train", "publish"]),
        (
            {"engine": "kv"},
            ["publish", "engine awake", "engine kv_released", "train", "publish", "engine awake"],
        ),
        (
            {"trainer": "optimizer"},
            [
                "publish",
                "trainer optimizer_released",
                "trainer awake",
                "train",
                "publish",
                "trainer optimizer_released",
            ],
        ),
    ],
)
def test_only_what_is_asked_for_moves(settings, expected):
    offload, calls = colocated(**settings)

    async def step():
        async with offload.publishing():
            calls.append("publish")
        async with offload.scoring():
            pass
        await offload.train()
        calls.append("train")
        async with offload.publishing():
            calls.append("publish")

    asyncio.run(step())
    assert calls == expected


@pytest.mark.parametrize("to", ["memory", "disk"])
def test_a_shelf_gives_back_every_bit_and_holds_nothing_meanwhile(to):
    tensors = {
        "a": torch.randn(7, 3),
        "b": torch.randn(5).bfloat16(),
        "c": torch.zeros(0),
        "d": torch.arange(9, dtype=torch.uint8),
        "e": torch.tensor(3.0),
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    shelf = Shelf(to)
    shelf.put(tensors)
    assert all(tensor.untyped_storage().size() == 0 for tensor in tensors.values())
    read = shelf.read()
    assert all(torch.equal(read[name], before[name]) for name in tensors)
    shelf.give_back()
    assert all(
        torch.equal(tensors[name], before[name]) and tensors[name].dtype == before[name].dtype for name in tensors
    )
    assert all(torch.equal(read[name], before[name]) for name in tensors), "what was read stays readable"


def test_what_is_put_away_is_memory_that_the_process_no_longer_has():
    big = {"w": torch.ones(64, 2**20)}
    process = psutil.Process()
    held = process.memory_info().rss
    shelf = Shelf("disk")
    shelf.put(big)
    assert held - process.memory_info().rss > 200 * 2**20
    shelf.give_back()
    assert float(big["w"].sum()) == 64 * 2**20


OFFLOADS = [
    {"engine": "kv"},
    {"engine": "weights", "trainer": "optimizer", "to": "disk"},
    {"engine": "weights", "trainer": "weights", "to": "disk"},
]
FEATURES = {
    "offload 0": {"offload": OFFLOADS[0]},
    "offload 1": {"offload": OFFLOADS[1]},
    "offload 2": {"offload": OFFLOADS[2]},
    "saved in the window": {"save": {"background": False}},
    "evaluations beside": {"evaluate": {"engines": 1}},
    "two evaluations beside": {"evaluate": {"engines": 2, "every": 1}},
    "exports": {"export": {"every": 2, "keep_last": 1}},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without any of it, and one that evaluates at every step."""
    folder = tmp_path_factory.mktemp("plain")
    return {every: start(recipe(folder, f"every-{every}", evaluate={"every": every})).path for every in (1, 2)}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_run_has_the_same_bits_wherever_things_lie_and_whenever_they_are_done(feature, plain, tmp_path):
    changes = FEATURES[feature]
    view = start(recipe(tmp_path, "run", **changes))
    every = changes.get("evaluate", {}).get("every", 2)
    assert compare_runs(plain[every], view.path) == []
    assert [e.step for e in view.evaluations()] == list(range(0, 5, every))
    if changes.get("offload"):
        for phase in ("rollout", "train", "publish"):
            assert len(view.history(f"memory/{phase}_mb")) == 4
    if "export" in changes:
        assert [p.name for p in (view.path / "exports").iterdir()] == ["step-4"]
        assert (view.path / "exports/step-4/model.safetensors").read_bytes() == (
            view.path / "model/model.safetensors"
        ).read_bytes()


@pytest.mark.parametrize("feature", ["offload 2", "two evaluations beside", "exports"])
def test_it_resumes_to_the_same_bits(feature, plain, tmp_path):
    changes = FEATURES[feature]
    every = changes.get("evaluate", {}).get("every", 2)

    def stops(event):
        if event.kind == "step" and event.step == 1:
            raise Interrupted("here")

    with pytest.raises(Interrupted):
        start(recipe(tmp_path, "run", **changes), observer=stops)
    view = resume(tmp_path / "run")
    assert compare_runs(plain[every], view.path) == []


def test_offload_needs_turns_and_somewhere_to_go(tmp_path):
    for changes, told in (
        ({"offload": {"engine": "kv"}, "schedule": {"max_staleness": 1}}, "at the same time"),
        ({"offload": {"trainer": "optimizer"}}, "offload.to=disk"),
    ):
        with pytest.raises(ConfigError, match=told):
            recipe(tmp_path, "run", **changes)
    with pytest.raises(ConfigError, match=r"offload\.to is set"):
        start(recipe(tmp_path, "run", offload={"engine": "kv", "to": "disk"}))


def test_an_evaluation_beside_training_that_fails_is_recorded_and_training_goes_on(tmp_path):
    view = start(recipe(tmp_path, "run", evaluate={"engines": 1, "score": "no-such-score"}))
    assert (view.status, view.steps, view.evaluations()) == ("done", 4, [])
    failed = [e.body for e in view.events if e.kind == "error"]
    assert [body.where for body in failed] == [f"evaluation held_out after step {step}" for step in (0, 2, 4)]
