"""Nodes shared by the tests of graphs: the shapes of the built-in ones, without what they do."""

from types import SimpleNamespace

import pytest

from stretto.graph import node
from stretto.roles import Generate, Judge, Score, Train
from stretto.types import Batch, Column, Credit, Group, LossRef, Prompt, StepReport, UpdateReport


@node
async def rollout(prompt: Prompt, generate: Generate, *, n: int = 8) -> Group: ...


@node
async def score(group: Group, judge: Judge) -> Group: ...


@node
def collect(groups: tuple[Group, ...]) -> Batch:
    return Batch(groups=groups)


@node(on="reference")
def logprobs(batch: Batch, score: Score) -> Column: ...


@node(on="critic")
def values(batch: Batch, score: Score) -> Column: ...


@node
def gae(batch: Batch, value: Column, ref: Column | None = None, *, lam: float = 0.95) -> Credit: ...


@node(on="critic")
def fit_values(batch: Batch, credit: Credit, train: Train) -> UpdateReport: ...


@node
def update_policy(
    batch: Batch, train: Train, credit: Credit, ref: Column | None = None, *, loss: LossRef = LossRef(use="clip")
) -> UpdateReport: ...


@node
def report(*reports: UpdateReport) -> StepReport: ...


@pytest.fixture(scope="session")
def kit():
    """The nodes, as attributes."""
    nodes = (rollout, score, collect, logprobs, values, gae, fit_values, update_policy, report)
    return SimpleNamespace(**{n.name: n for n in nodes}, all={n.name: n for n in nodes})


def node_of(id, use, on=None, settings=None, **inputs):
    """A node in its written form."""
    written = {"id": id, "use": use, "inputs": inputs, "with": settings or {}}
    return written | ({"on": on} if on else {})


@pytest.fixture(scope="session")
def n():
    """Short for a node in its written form: ``n(id, use, on=, settings=, **inputs)``."""
    return node_of


@pytest.fixture
def ppo():
    """The written form of ppo, to be broken."""
    return {
        "workflow": "ppo",
        "nodes": [
            node_of("group", "rollout", prompt="prompt", settings={"n": 4}),
            node_of("scored", "score", group="group"),
            node_of("batch", "collect", groups="scored"),
            node_of("ref", "logprobs", batch="batch"),
            node_of("value", "values", batch="batch"),
            node_of("credit", "gae", batch="batch", value="value", ref="ref"),
            node_of("fit", "fit_values", batch="batch", credit="credit"),
            node_of("learn", "update_policy", batch="batch", credit="credit", ref="ref"),
            node_of("done", "report", reports=["fit", "learn"]),
        ],
        "output": "done",
    }
