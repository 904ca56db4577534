"""The written form: Python to YAML and back is the identity; faults of the writing."""

import json
import string
from collections.abc import Mapping
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.errors import GraphError
from stretto.graph import draw_json, dump_graph, dump_yaml, load_graph, node, python_only, workflow
from stretto.graph.settings import from_json
from stretto.types import Batch, Group, LossRef, Prompt, Setting, StepReport
from stretto.workflows.nodes import NODES


@node
def begin(prompt: Prompt) -> Group: ...


@node
def gather(groups: tuple[Group, ...]) -> Batch: ...


@node
def finish(
    batch: Batch,
    *,
    text: str = "",
    number: float = 1,
    count: int | None = None,
    kind: Literal["a", "b"] = "a",
    any_of: int | float | str | bool | None = None,
    loss: LossRef | None = None,
    pair: tuple[int, ...] = (),
    table: Mapping[str, Setting] | None = None,
) -> StepReport: ...


def traced(**given):
    @workflow
    def simple(prompt: Prompt) -> StepReport:
        return finish(gather(begin(prompt)), **given)

    return simple.graph()


SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    [
        "on",
        "no",
        "null",
        "3e-5",
        "1_0",
        "0x1f",
        "1:30",
        "~",
        "2024-01-01",
        "1.",
        ".5",
        "-",
        "prompt",
        " a ",
        "'",
        "a: b #c",
    ]
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "count": st.none() | st.integers(),
        "kind": st.sampled_from(["a", "b"]),
        "any_of": SCALARS | TEXT,
        "loss": st.builds(LossRef, use=TEXT, settings=st.dictionaries(TEXT, SCALARS | TEXT, max_size=3)),
        "pair": st.lists(st.integers()).map(tuple),
        "table": st.none() | st.dictionaries(st.text(string.printable), SCALARS, max_size=3),
    },
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("workflows")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(given_settings=SETTINGS)
def test_settings_survive_yaml_and_json(folder, given_settings):
    graph = traced(**given_settings)
    for name, text in (("w.yaml", dump_yaml(graph)), ("w.json", json.dumps(dump_graph(graph)))):
        (folder / name).write_text(text, encoding="utf-8")
        loaded = load_graph(folder / name, {})
        assert loaded == graph
        before, after = graph.by_id["finish"].settings, loaded.by_id["finish"].settings
        assert [type(value) for value in before.values()] == [type(value) for value in after.values()]


def test_functions_of_a_module_are_found_by_name():
    graph = traced()
    assert [spec.use for spec in graph.nodes] == [f"{__name__}:{name}" for name in ("begin", "gather", "finish")]
    assert python_only(graph) == ()
    assert load_graph(dump_graph(graph), {}).functions == graph.functions
    assert len({graph, load_graph(dump_graph(graph), {})}) == 1


def test_what_lives_only_in_python_says_so():
    @node
    def local(batch: Batch) -> StepReport: ...

    @workflow
    def w(prompt: Prompt) -> StepReport:
        return local(gather(begin(prompt)))

    graph = w.graph()
    assert python_only(graph) == ("local",)
    with pytest.raises(GraphError, match=r"lived only in the Python that made it. Put it into a module"):
        load_graph(dump_graph(graph), {})
    assert load_graph(dump_graph(graph), {graph.by_id["local"].use: local}) == graph


def test_ppo_reads_well(kit, ppo):
    graph = load_graph(ppo, kit.all)
    text = dump_yaml(graph)
    assert "\n- id: group\n  use: " in text
    assert "  inputs: {batch: batch, value: value, ref: ref}\n" in text
    assert "    reports: [fit, learn]\n" in text
    # on= is written only where it is not the node's own Model.
    assert "on:" not in text
    next(item for item in ppo["nodes"] if item["id"] == "ref")["on"] = "teacher"
    changed = load_graph(ppo, kit.all)
    assert "\n  on: teacher\n" in dump_yaml(changed)
    assert changed.by_id["ref"].roles["score"].model == "teacher"
    assert changed != graph


def test_the_drawing_for_programs(kit, ppo):
    drawn = json.loads(draw_json(load_graph(ppo, kit.all)))
    assert drawn["boundary"] == ["scored"]
    assert {"from": "ref", "to": "learn"} in drawn["edges"]
    ref = next(item for item in drawn["nodes"] if item["id"] == "ref")
    value = next(item for item in drawn["nodes"] if item["id"] == "value")
    assert ref["layer"] == value["layer"] == 4
    assert ref["roles"] == {"score": {"kind": "score", "model": "reference"}}
    assert (ref["world"], ref["output"]) == ("step", "Column")


def written(**changes):
    node = {"id": "a", "use": "begin", "inputs": {"prompt": "prompt"}}
    return {"workflow": "w", "nodes": [node | changes], "output": "a"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (written(input={}), r"node 'a' has an unknown key 'input'. Did you mean 'inputs'\?"),
        (written(inputs=3), r"node 'a': inputs is 3. Write inputs: \{parameter: value\}"),
        (written(inputs={"prompt": 3}), "input 'prompt' is 3. Write the id of a node, or a list of ids"),
        (written(use=None), "node 'a': use is None. Write use: and a name"),
        (written(on=3), "node 'a': on is 3"),
        (written(use="json:loads"), "Put @node on the function"),
        (written(use="nowhere_at_all:f"), "there is no module 'nowhere_at_all'"),
        (written(use="json:loaf"), r"there is no 'loaf' in it. Did you mean 'load"),
        ({"workflow": "w", "nodes": [{}], "output": "a"}, "node number 1: id is missing"),
        ({"workflow": "w", "nodes": [3], "output": "a"}, "node number 1 is 3"),
        ({"workflow": "w", "nodes": {}, "output": "a"}, "has no list of nodes"),
        ({"nodes": [], "output": "a"}, "workflow is missing"),
        ({"workflov": "w"}, r"unknown key 'workflov'. Did you mean 'workflow'\?"),
    ],
)
def test_faults_of_the_writing(source, message):
    with pytest.raises(GraphError, match=message):
        load_graph(source, {"begin": begin})


def test_faults_of_a_file(tmp_path):
    path = tmp_path / "w.yaml"
    with pytest.raises(GraphError, match=r"w.yaml cannot be read"):
        load_graph(path, {})
    for text, message in (
        ("workflow: w\nnodes: [\n", "not a YAML value"),
        ("- a\n", "holds no workflow but list"),
        ("workflow: w\nnodes:\n- id: a\n  use: b\n  id: c\n", r"w.yaml:5: the key 'id' is written twice"),
        ("workflow: w\nnodes: []\noutput: a\n", r"w.yaml: workflow 'w': there is no node"),
    ):
        path.write_text(text)
        with pytest.raises(GraphError, match=message):
            load_graph(str(path), {})
    path = tmp_path / "w.json"
    for text, message in (("{", r"w.json:1: not valid JSON"), ('{"nodes": 1, "nodes": 2}', "'nodes' is written twice")):
        path.write_text(text)
        with pytest.raises(GraphError, match=message):
            load_graph(path, {})


def test_what_lives_in_this_process_only_cannot_be_written_down():
    from stretto.graph.settings import from_json, to_json
    from stretto.types import LossRef

    named = LossRef(use="clip", settings={"clip_low": 0.1})
    assert from_json(to_json(named, LossRef), LossRef, "a loss") == named
    with pytest.raises(GraphError, match="Name what it holds as module:function"):
        to_json(LossRef(use="python:mine", function=len), LossRef)


@pytest.mark.parametrize(
    ("node", "settings", "why"),
    [
        ("advantages", {"estimator": {"type": "rlooo"}}, r"whose type is not known. Did you mean 'rloo'\?"),
        ("advantages", {"estimator": "rloo"}, r"got 'rloo'. Write \{type: rloo\}."),
        (
            "advantages",
            {"estimator": {"type": "rloo", "epsilon": 1.0}},
            r"must be RlooAdvantages, .* not permitted \(at eps",
        ),
        ("advantages", {"kl": {"coef": 0.0, "adaptive": {"target": 1.0}}}, "coef=0 leaves that out. Set coef.$"),
        (
            "correct",
            {"settings": {"mode": "icepop"}},
            "cannot be .*: algorithm.correction.mode=icepop",
        ),
        ("update_policy", {"updates": {"aggregate": "token_sum_norm"}}, "divides by a constant, and norm is not set"),
        ("update_policy", {"loss": {"type": "clip", "clip_low": -1.0}}, r"greater than 0 \(at clip_low\)"),
    ],
)
def test_a_section_that_cannot_be_says_what_is_wrong_with_it(node, settings, why):
    (name,) = settings
    with pytest.raises(GraphError, match=f"setting {name!r}.*{why}"):
        from_json(settings[name], NODES[node].params[name].type, f"setting {name!r}")
