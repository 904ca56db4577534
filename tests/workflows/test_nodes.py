"""The built-in nodes as plain functions: masks by length, what each update is given, reports by Model."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest

from stretto.config.algorithms import LossTerms
from stretto.config.load import recipe_from_mapping
from stretto.errors import DataError
from stretto.graph import dump_graph, load_graph
from stretto.roles import Completion
from stretto.runtime.graphs import main_graph
from stretto.testing import FakeEnvironment, make_batch, make_prompt
from stretto.types import Column, Credit, Message, Metric, Span, UpdateReport
from stretto.workflows.builtin import WORKFLOWS
from stretto.workflows.nodes import NODES, demonstrate, fit_values, logprobs, report, rollout, update_policy


class Tokens:
    """A tokenizer whose pad is its eos."""

    draw, eos_id = 5, 2

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(c) for c in text], np.int32)

    def decode(self, token_ids: np.ndarray) -> str:
        return "".join(chr(i) for i in token_ids if i != self.eos_id)

    def ending(self, prompt) -> np.ndarray:
        return np.array([self.eos_id] if prompt.messages is None else [10, 3], np.int32)


class Generator:
    """Answers in reverse order, to see that siblings are put in theirs."""

    model, draw, temperature = "policy", 5, 0.7

    async def complete(self, token_ids, *, samples, turn=0, greedy=False):
        for index in reversed(range(len(samples))):
            ids = np.array([52, 2][: 1 + index % 2], np.int32)
            yield Completion(
                index=index,
                token_ids_T=ids,
                logprobs_T=np.full(len(ids), -0.5, np.float32),
                versions=(Span(3, len(ids)),),
                finish="stop",
            )


class Learner:
    """Keeps what it was given."""

    model = "policy"

    def __init__(self, step=0):
        self.step, self.updates = step, []

    def learn(self, batch, columns, loss):
        self.columns, self.loss = {c.name: c for c in columns}, loss
        self.updates.append((batch, self.columns))
        return UpdateReport(model=self.model, metrics={"loss": Metric("sum", 1.0), "ref_kl": Metric("mean", 4.0, 2.0)})

    def score(self, batch, want):
        return (Column.per_token("logprobs", batch, -np.arange(batch.num_tokens, dtype=np.float64)),)


@dataclass
class Kept:
    """What a node keeps."""

    value: object = None


def test_rollout_masks_by_length_and_trains_the_end_token():
    # pitfalls 14, 15, 18
    prompt = make_prompt(token_ids=[1, 2, 2])  # the prompt holds the eos id itself
    group = asyncio.run(rollout(prompt, Generator(), Tokens(), FakeEnvironment(), n=4))
    assert [t.key.sample for t in group.trajectories] == [0, 1, 2, 3]
    longer = group.trajectories[1]
    assert longer.token_ids_T.tolist() == [1, 2, 2, 52, 2]
    assert longer.mask_T.tolist() == [0, 0, 0, 1, 1]
    assert longer.logprobs_T.tolist() == [0, 0, 0, -0.5, -0.5]
    assert (longer.text, longer.temperature, longer.versions) == ("4", 0.7, (Span(3, 2),))


def test_demonstrations_end_with_eos_and_need_an_answer():
    # pitfall 14
    group = asyncio.run(demonstrate(make_prompt(answer="7"), Tokens()))
    (trajectory,) = group.trajectories
    assert trajectory.token_ids_T.tolist() == [1, 5, 6, 55, 2]
    assert trajectory.mask_T.tolist() == [0, 0, 0, 1, 1]
    assert trajectory.versions == ()
    prompt = make_prompt()
    said = replace(prompt, messages=(Message(role="user", content="p"),))
    (trajectory,) = asyncio.run(demonstrate(said, Tokens())).trajectories
    assert trajectory.token_ids_T.tolist() == [1, 5, 6, 55, 10, 3]
    assert trajectory.mask_T.tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(DataError, match="has no answer to demonstrate"):
        asyncio.run(demonstrate(type(prompt)(uid="u", text="", token_ids=prompt.token_ids), Tokens()))


def credit_of(batch) -> Credit:
    return Credit(advantages=Column.per_token("advantages", batch, np.ones(batch.num_tokens)))


def test_the_sampler_is_the_proximal_policy_of_stale_rollouts():
    batch, learner = make_batch(), Learner()
    update_policy(batch, credit_of(batch), learner, Kept(), proximal="detach")
    assert "old_logprobs" not in learner.columns
    update_policy(batch, credit_of(batch), learner, Kept(), proximal="sampler")
    sampled = np.concatenate([t.logprobs_T for t in batch.trajectories])
    assert learner.columns["old_logprobs"].values.tolist() == sampled.tolist()


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize(("staleness", "proximal"), [(0, "detach"), (1, "sampler")])
def test_a_recipe_that_runs_ahead_corrects_for_it(algorithm, staleness, proximal):
    recipe = {"steps": 1, "algorithm": {"type": algorithm}, "schedule": {"max_staleness": staleness}}
    graph = main_graph(recipe_from_mapping(recipe))
    assert graph.by_id["learn"].settings["proximal"] == proximal


def test_log_probs_are_named_after_what_they_are_for():
    class Scorer:
        def __init__(self, model):
            self.model = model

        def score(self, batch, want):
            return (Column.per_token("logprobs", batch, np.zeros(batch.num_tokens)),)

    assert logprobs(make_batch(), Scorer("reference")).name == "ref_logprobs"
    assert logprobs(make_batch(), Scorer("policy")).name == "old_logprobs"


def test_fit_values_needs_returns():
    batch = make_batch()
    with pytest.raises(DataError, match="without returns"):
        fit_values(batch, credit_of(batch), Column.per_token("old_values", batch, np.ones(batch.num_tokens)), Learner())


def test_reports_name_other_models_and_skipped_updates():
    policy = UpdateReport(model="policy", metrics={"loss": Metric("sum", 1.0)})
    critic = UpdateReport(model="critic", metrics={"loss": Metric("sum", 2.0)}, skipped="not finite")
    both = report(critic, policy)
    assert {name: m.value for name, m in both.metrics.items()} == {"loss": 1.0, "critic/loss": 2.0}
    assert both.skipped == {"critic": "not finite"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_built_in_workflows_survive_being_written_down(name):
    graph = WORKFLOWS[name].graph()
    assert load_graph(dump_graph(graph), NODES) == graph


def test_the_reference_is_there_only_if_it_is_weighed():
    assert "ref" not in WORKFLOWS["grpo"].graph().by_id
    assert WORKFLOWS["grpo"].graph(terms=LossTerms(kl_coef=0.1)).by_id["ref"].model == "reference"
