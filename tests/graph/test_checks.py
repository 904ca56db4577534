"""Every fault of a graph, by its message: what is wrong, what came, what to do."""

import re

import pytest

from stretto.errors import GraphError
from stretto.graph import check_models, load_graph, node
from stretto.types import Batch, Column, Group, Prompt, StepReport


@node
def two(left: Group, right: Group | None = None) -> Group: ...


@node
def sized(group: Group) -> int: ...


@node
def constant() -> Column: ...


@node
def maybe(batch: Batch) -> Column | None: ...


@node
def per_group(prompt: Prompt, extra: Column) -> Group: ...


@node
def from_prompt(prompt: Prompt, extra: Column) -> Column: ...


@node
def mixed(batch: Batch, group: Group) -> Column: ...


@node
def regroup(batch: Batch) -> Group: ...


@node
async def later(batch: Batch) -> Column: ...


@node
def either(rows: Group | Batch) -> Group | Batch: ...


@node
def done(*values: Column | Batch) -> StepReport: ...


EXTRA = {n.name: n for n in (two, sized, constant, maybe, per_group, from_prompt, mixed, regroup, later, either, done)}


@pytest.fixture
def refuses(kit):
    def check(written, message):
        with pytest.raises(GraphError) as caught:
            load_graph(written, kit.all | EXTRA)
        assert re.search(message, str(caught.value)), str(caught.value)

    return check


def at(written, id):
    return next(item for item in written["nodes"] if item["id"] == id)


def small(n, *more, output="end", reads=("batch",)):
    nodes = [n("group", "rollout", prompt="prompt"), n("batch", "collect", groups="group"), *more]
    return {"workflow": "w", "nodes": [*nodes, n("end", "done", values=list(reads))], "output": output}


def test_the_whole_one_is_fine(kit, ppo):
    assert load_graph(ppo, kit.all).by_id["learn"].world == "step"


def test_ids(ppo, refuses):
    at(ppo, "value")["id"] = "ref"
    refuses(ppo, r"workflow 'ppo': two nodes are called 'ref' \(logprobs and values\). Give each its own id")
    ppo["nodes"] = []
    refuses(ppo, "there is no node in it")


@pytest.mark.parametrize(
    ("id", "message"), [("prompt", "'prompt', which is what the graph starts from"), ("a b", "no id")]
)
def test_ids_that_cannot_be(ppo, refuses, id, message):
    at(ppo, "fit")["id"] = id
    refuses(ppo, message)


def test_unknown_names(ppo, refuses):
    at(ppo, "fit")["inputs"]["credits"] = "credit"
    refuses(ppo, r"node 'fit' \(fit_values\) has no input or setting 'credits'. Did you mean 'credit'\?")
    del at(ppo, "fit")["inputs"]["credits"]
    at(ppo, "fit")["inputs"]["train"] = "credit"
    refuses(ppo, "no input or setting 'train'. The runtime binds its roles")
    del at(ppo, "fit")["inputs"]["train"]
    at(ppo, "fit")["inputs"]["credit"] = "credits"
    refuses(ppo, r"node 'fit' reads 'credits', and there is no such node. Did you mean 'credit'\?")
    at(ppo, "fit")["inputs"]["credit"] = "credit"
    at(ppo, "fit")["use"] = "fit_value"
    refuses(ppo, r"uses 'fit_value', and no built-in node is called that. Did you mean 'fit_values'\?")
    at(ppo, "fit")["use"] = "fit_values"
    ppo["output"] = "don"
    refuses(ppo, r"its output is 'don', and there is no such node. Did you mean 'done'\?")


def test_settings(ppo, refuses):
    at(ppo, "group")["with"] = {"m": 3}
    refuses(ppo, r"node 'group' \(rollout\) has no setting 'm'.")
    at(ppo, "group")["with"] = {"prompt": 3}
    refuses(ppo, "It is an input: write it under inputs")
    at(ppo, "group")["with"] = {"generate": 3}
    refuses(ppo, "no setting 'generate'. The runtime binds its roles")
    at(ppo, "group")["with"] = {"n": "8"}
    refuses(ppo, r"setting 'n' must be int, got '8' \(str\)")
    at(ppo, "group")["with"] = {}
    at(ppo, "learn")["with"] = {"loss": {"use": "clip", "cliplow": 1}}
    refuses(ppo, r"setting 'loss' must be LossRef, got \{.*\} \(dict\): unexpected keyword argument \(at cliplow\)")


def test_inputs(ppo, refuses):
    del at(ppo, "credit")["inputs"]["value"]
    refuses(ppo, r"node 'credit' \(gae\) is missing its input 'value' \(Column\). Pass it the output of a node")
    at(ppo, "credit")["inputs"]["value"] = ["value"]
    refuses(ppo, "input 'value' takes one id, got")
    at(ppo, "credit")["inputs"]["value"] = "value"
    at(ppo, "done")["inputs"]["reports"] = "fit"
    refuses(ppo, "input 'reports' takes a list of ids, got 'fit'")


def test_an_input_and_a_setting_of_one_name(n, refuses):
    written = small(n, n("size", "sized", group="group"))
    at(written, "group")["with"], at(written, "group")["inputs"]["n"] = {"n": 3}, "size"
    refuses(written, "'n' is given twice, as an input and as a setting")


def test_an_output_may_feed_a_setting(n, kit):
    written = small(n, n("size", "sized", group="group"), n("again", "rollout", prompt="prompt", n="size"))
    written["nodes"][1]["inputs"]["groups"] = "again"
    graph = load_graph(written, kit.all | EXTRA)
    assert "n" not in graph.by_id["again"].settings


def test_on(ppo, refuses):
    at(ppo, "scored")["on"] = "critic"
    refuses(ppo, r"node 'scored' \(score\) is on='critic' and has no role on a Model. Leave on= out")


def test_a_circle(ppo, refuses):
    at(ppo, "ref")["inputs"]["batch"] = "learn"
    refuses(ppo, "wait for each other in a circle: (ref -> credit -> learn -> ref|ref -> learn -> ref)")
    at(ppo, "ref")["inputs"]["batch"] = "ref"
    refuses(ppo, "in a circle: ref -> ref. Take one of these inputs out")


def test_types_that_do_not_fit(ppo, n, refuses):
    at(ppo, "value")["inputs"]["batch"] = "scored"
    refuses(ppo, r"node 'value' \(values\): input 'batch' takes Batch, and 'scored' is Group. Collect the groups first")
    at(ppo, "value")["inputs"]["batch"] = "batch"
    at(ppo, "credit")["inputs"]["value"] = "batch"
    refuses(ppo, "input 'value' takes Column, and 'batch' is Batch. Pass it the output of a node that returns that")
    refuses(small(n, n("col", "maybe", batch="batch"), reads=["batch", "col"]), "is Column | None. It may be None")
    written = small(n, n("again", "rollout", prompt="prompt", n="group"))
    refuses(written, "input 'n' takes int, and 'group' is Group. It is a setting: give it a value")


def test_a_value_nobody_reads(ppo, refuses):
    at(ppo, "done")["inputs"]["reports"] = ["learn"]
    refuses(ppo, r"no node reads 'fit' \(the UpdateReport of fit_values\). Pass it to a node, or take it out")


def test_a_prompt_nobody_reads(n, refuses):
    nodes = [n("col", "constant"), n("end", "done", values=["col"])]
    refuses({"workflow": "w", "nodes": nodes, "output": "end"}, "no node reads the prompt")


def test_the_output_is_a_step_report(ppo, n, refuses):
    written = {"workflow": "w", "nodes": [n("group", "rollout", prompt="prompt")], "output": "group"}
    refuses(written, "its output 'group' is made per group, and a step must report. Collect the groups")
    refuses(written | {"output": "prompt"}, "made per group|no node reads 'group'")
    written["nodes"].append(n("batch", "collect", groups="group"))
    refuses(
        written | {"output": "batch"}, "its output 'batch' is a Batch, and a step ends in a StepReport or an UpdateRe"
    )


def test_per_group_values_below_the_boundary(n, refuses):
    written = small(n, n("mix", "mixed", batch="batch", group="group"), reads=["mix"])
    refuses(
        written,
        r"node 'mix' \(mixed\) runs per step \(it reads 'batch'\) and reads 'group', which is made per group. Only "
        r"Groups cross, through a parameter of type tuple\[Group, ...\]",
    )


def test_per_step_values_above_the_boundary(n, refuses):
    written = small(n, n("col", "maybe", batch="batch"), n("more", "per_group", prompt="prompt", extra="col"))
    refuses(written, "'col' is Column | None")
    written["nodes"][2] = n("col", "logprobs", batch="batch")
    refuses(written, r"node 'more' \(per_group\) returns a Group and reads 'col': a per-group node below the boundary")
    at(written, "more")["use"] = "from_prompt"
    refuses(written, r"node 'more' \(from_prompt\) runs per step \(it reads 'col'\) and reads 'prompt', which is made")


def test_a_per_group_node_below_the_boundary(n, refuses):
    written = small(n, n("back", "regroup", batch="batch"), n("rows", "collect", groups="back"), reads=["rows"])
    refuses(written, r"node 'back' \(regroup\) returns a Group and reads 'batch': a per-group node below the boundary")


def test_what_waits_for_nothing_runs_where_it_is_read(n, kit, refuses):
    written = small(n, n("col", "constant"), n("more", "per_group", prompt="prompt", extra="col"))
    written["nodes"][1]["inputs"]["groups"] = "two"
    written["nodes"].append(n("two", "two", left="group", right="more"))
    assert load_graph(written, kit.all | EXTRA).by_id["col"].world == "group"
    assert (
        load_graph(small(n, n("col", "constant"), reads=["batch", "col"]), kit.all | EXTRA).by_id["col"].world == "step"
    )
    at(written, "end")["inputs"]["values"] = ["batch", "col"]
    refuses(written, r"node 'more' \(per_group\) runs per group and reads 'col', which is made per step")


def test_one_node_in_both_worlds(n, kit):
    written = small(n, n("above", "either", rows="group"), n("below", "either", rows="batch"), reads=["below"])
    written["nodes"][1]["inputs"]["groups"] = "above"
    graph = load_graph(written, kit.all | EXTRA)
    assert [(graph.by_id[id].world, graph.by_id[id].output) for id in ("above", "below")] == [
        ("group", "Group"),
        ("step", "Batch"),
    ]


def test_an_async_node_per_step(n, refuses):
    refuses(small(n, n("col", "later", batch="batch"), reads=["col"]), r"'col' \(later\) is async and runs per step")


def test_models_that_no_config_provides(kit, ppo):
    graph = load_graph(ppo, kit.all)
    check_models(graph, {"policy", "reference", "critic"})
    check_models(graph, {"policy": {"generate", "train"}, "reference": {"score"}, "critic": {"score", "train"}})
    with pytest.raises(GraphError, match=r"node 'ref' \(.*logprobs\) is on the Model 'reference', which no config pro"):
        check_models(graph, {"policy", "critic"})
    at(ppo, "ref")["on"] = "referense"
    with pytest.raises(GraphError, match=r"'referense', which no config provides. Did you mean 'reference'\?"):
        check_models(load_graph(ppo, kit.all), {"policy", "critic", "reference"})
    with pytest.raises(GraphError, match="wants to train on the Model 'critic', which serves only score"):
        check_models(graph, {"policy": {"generate", "train"}, "reference": {"score"}, "critic": {"score"}})
    with pytest.raises(GraphError, match=r"node 'scored' \(.*score\) needs the role judge, and this run has none"):
        check_models(graph, {"policy", "reference", "critic"}, services={"tokenize"})


def test_a_default_of_the_wrong_type(n, kit, refuses):
    @node
    def off(batch: Batch, *, rate: float = "x") -> Column: ...

    EXTRA["off"] = off
    refuses(small(n, n("col", "off", batch="batch"), reads=["col"]), "node 'off': the default of 'rate' must be float")
