"""From recipes to graphs: what is filled in, and what is refused."""

import pytest

from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError, GraphError
from stretto.graph import dump_graph, dump_yaml, load_graph, workflow
from stretto.graph.settings import brief
from stretto.runtime.graphs import main_graph
from stretto.types import Prompt, StepReport
from stretto.workflows.nodes import NODES, advantages, collect, imitate, report, rollout, score, update_policy


@workflow
def twice(prompt: Prompt, *, n: int = 4) -> StepReport:
    first = collect(score(rollout(prompt, n=n)))
    second = collect(score(rollout(prompt, n=n)))
    return report(update_policy(first, advantages(first)), imitate(second))


@workflow
def two_batches(prompt: Prompt, *, n: int = 4) -> StepReport:
    group = rollout(prompt, n=n)
    raw = collect(group)
    judged = collect(score(group))
    return report(update_policy(judged, advantages(judged)), imitate(raw))


def recipe(**sections: object):
    return recipe_from_mapping({"steps": 1, **sections})


def test_two_nodes_that_sample_one_model_are_refused():
    # pitfall 21: they would write the same
    with pytest.raises(GraphError, match=r"'rollout' and 'rollout-2' both sample the Model 'policy'"):
        main_graph(recipe(), twice)


def test_several_collects_may_share_the_boundary():
    graph = main_graph(recipe(), two_batches)
    assert [spec.id for spec in graph.step_nodes][:2] == ["raw", "judged"]


def test_sampling_n_fills_n_and_two_values_are_refused():
    assert main_graph(recipe(sampling={"n": 5})).by_id["group"].settings["n"] == 5
    assert main_graph(recipe(), two_batches).by_id["group"].settings["n"] == 4
    assert main_graph(recipe(sampling={"n": 5}), two_batches).by_id["group"].settings["n"] == 5

    @workflow
    def fixed(prompt: Prompt) -> StepReport:
        return report(imitate(collect(rollout(prompt, n=3))))

    with pytest.raises(ConfigError, match=r"sampling\.n=5, and node 'rollout' of workflow 'fixed' says n=3"):
        main_graph(recipe(sampling={"n": 5}), fixed)


def test_a_key_the_workflow_does_not_take_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.clip_low is set, and workflow 'two_batches' does not read it"):
        main_graph(recipe(algorithm={"type": "grpo", "clip_low": 0.1}), two_batches)


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "rloo", "ppo", "composed"])
@pytest.mark.parametrize("between", ["hold", "linear"])
def test_values_by_step_stand_in_the_graph_and_survive_being_written(algorithm, between, tmp_path):
    coef = {"at": {0: 0, 2: 0.1}, "between": between}
    given = recipe(algorithm={"type": algorithm, "kl_coef": coef})
    graph = main_graph(given)
    assert "reference" in {role.model for spec in graph.nodes for role in spec.roles.values()}
    file = tmp_path / "workflow.yaml"
    file.write_text(dump_yaml(graph))
    loaded = load_graph(file, NODES)
    assert loaded.nodes == graph.nodes
    assert dump_graph(loaded) == dump_graph(graph) and dump_yaml(loaded) == dump_yaml(graph)
    settings = [value for spec in graph.nodes for value in spec.settings.values()]
    assert any("{0: 0, 2: 0.1}" in brief(value) for value in settings)  # as drawings show it
