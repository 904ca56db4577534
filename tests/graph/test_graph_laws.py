"""The laws of graphs, over random ones: diamonds, joins, several boundaries, many edges into one parameter."""

import asyncio
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.graph import (
    boundary_inputs,
    draw_svg,
    draw_text,
    dump_graph,
    dump_yaml,
    load_graph,
    node,
    parents,
    run_group,
    run_step,
    workflow,
)
from stretto.testing import make_prompt
from stretto.types import Batch, Column, Group, Prompt, StepReport


@node
def start(prompt: Prompt, *others: Group, n: int = 1) -> Group: ...


@node
async def merge(*groups: Group) -> Group: ...


@node
def pair(first: Group, second: Group | None = None) -> Group: ...


@node
def collect(groups: tuple[Group, ...]) -> Batch: ...


@node
def gather(*groups: tuple[Group, ...]) -> Batch: ...


@node
def column(batch: Batch, other: Column | Batch | None = None, *more: Column) -> Column: ...


@node
def constant() -> Column: ...


@node
def join(*columns: Column | Batch) -> Column: ...


@node
def finish(*values: Column | Batch) -> StepReport: ...


def random_program(seed):
    """Random calls as (name, node, inputs, settings), each after what it reads; every value is read in the end."""
    r = random.Random(seed)
    calls, read = [], set()
    groups, batches, columns = [], [], []

    def some(ids, low=0, high=3):
        chosen = r.sample(ids, min(len(ids), r.randint(low, high)))
        read.update(chosen)
        return chosen

    def add(kind, use, inputs, kept, **given):
        name = f"{kind}{len(calls)}"
        calls.append((name, use, {k: v for k, v in inputs.items() if v not in (None, [])}, given))
        kept.append(name)

    def one(ids, need=True):
        return some(ids, 1, 1)[0] if ids and (need or r.random() < 0.5) else None

    for _ in range(r.randint(1, 7)):
        choice = r.random()
        if not groups or choice < 0.3:
            add("g", start, {"prompt": "prompt", "others": some(groups)}, groups, n=r.randint(1, 9))
        elif choice < 0.7:
            add("g", merge, {"groups": some(groups, 1, 4)}, groups)
        else:
            add("g", pair, {"first": one(groups), "second": one(groups, need=False)}, groups)
    for name in groups:
        if name not in read or r.random() < 0.2:
            read.add(name)
            add("b", collect, {"groups": name}, batches)
    if r.random() < 0.4:
        add("b", gather, {"groups": some(groups, 1, 3)}, batches)
    for _ in range(r.randint(0, 8)):
        choice = r.random()
        if choice < 0.1:
            add("c", constant, {}, columns)
        elif choice < 0.6:
            # *more can only be reached past `other`.
            other = one(columns + batches, need=False)
            more = some(columns) if other else []
            add("c", column, {"batch": one(batches), "other": other, "more": more}, columns)
        else:
            add("c", join, {"columns": some(columns + batches, 1, 4)}, columns)
    unread = [name for name in batches + columns if name not in read]
    add("f", finish, {"values": unread or batches}, [])
    return calls


def written_form(calls):
    nodes = [
        {"id": name, "use": use.name, "inputs": dict(inputs), "with": dict(given)} for name, use, inputs, given in calls
    ]
    return {"workflow": "random", "nodes": nodes, "output": calls[-1][0]}


BUILTINS = {n.name: n for n in (start, merge, pair, collect, gather, column, constant, join, finish)}
SEEDS = st.integers(0, 2**32)


def check_order(graph, order):
    place = {id: i for i, id in enumerate(order)}
    for spec in graph.nodes:
        assert all(place[id] < place[spec.id] for id in parents(spec) if id in place)


def value_of(spec, draw):
    return (spec.id, draw)


def seen(spec, draw, groups):
    """The inputs a node must get: the very values of what it reads."""

    def one(id):
        if id == "prompt":
            return draw
        return groups.get(id, (id, draw))

    return {
        name: one(source) if isinstance(source, str) else tuple(one(id) for id in source)
        for name, source in spec.inputs.items()
    }


@settings(max_examples=1500, deadline=None)
@given(seed=SEEDS)
def test_every_node_runs_once_after_its_inputs_and_sees_them_all(seed):
    graph = load_graph(written_form(random_program(seed)), BUILTINS)
    r = random.Random(seed)
    ran, values_of_draws = Counter(), []

    async def invoke(spec, inputs, draw):
        for _ in range(r.randint(0, 3)):
            await asyncio.sleep(0)
        ran[spec.id, draw] += 1
        prompt = inputs.get("prompt")
        assert {**inputs, **({"prompt": draw} if prompt is not None else {})} == seen(spec, draw, {})
        for _ in range(r.randint(0, 3)):
            await asyncio.sleep(0)
        return value_of(spec, draw)

    async def draws():
        runs = (run_group(graph, make_prompt(), lambda s, i, d=d: invoke(s, i, d)) for d in range(3))
        values_of_draws.extend(await asyncio.gather(*runs))

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(draws())
    finally:
        loop.close()
    assert ran == {(spec.id, draw): 1 for spec in graph.group_nodes for draw in range(3)}

    groups = {id: tuple(values[id] for values in values_of_draws) for id in boundary_inputs(graph)}
    steps = []

    def invoke_step(spec, inputs):
        steps.append(spec.id)
        assert inputs == seen(spec, "step", groups)
        return value_of(spec, "step")

    done = run_step(graph, groups, invoke_step)
    assert steps == [spec.id for spec in graph.step_nodes] == list(done)
    assert sorted(steps) == sorted(spec.id for spec in graph.nodes if spec.world == "step")
    check_order(graph, [*(spec.id for spec in graph.group_nodes), *steps])


@settings(max_examples=1500, deadline=None)
@given(seed=SEEDS)
def test_every_rank_has_the_same_order_and_any_order_of_writing_a_valid_one(seed):
    calls = random_program(seed)
    written = written_form(calls)
    graph = load_graph(written, BUILTINS)
    again = load_graph(
        json.loads(json.dumps(dump_graph(graph))), {spec.use: graph.functions[spec.id] for spec in graph.nodes}
    )
    assert again == graph
    assert [spec.id for spec in again.order] == [spec.id for spec in graph.order]

    nodes = list(written["nodes"])
    random.Random(seed).shuffle(nodes)
    shuffled = load_graph(written | {"nodes": nodes}, BUILTINS)
    check_order(shuffled, [spec.id for spec in shuffled.order])
    check_order(shuffled, [spec.id for spec in shuffled.step_nodes])
    assert {spec.id: spec for spec in shuffled.nodes} == {spec.id: spec for spec in graph.nodes}
    assert set(boundary_inputs(shuffled)) == set(boundary_inputs(graph))


def traced(calls):
    @workflow
    def random_workflow(prompt: Prompt) -> StepReport:
        values = {"prompt": prompt}
        for name, use, inputs, given_settings in calls:
            named = dict(given_settings)
            args = []
            for param, source in inputs.items():
                if isinstance(source, list):
                    args = [
                        *(named.pop(key) for key in list(named) if key not in given_settings),
                        *(values[s] for s in source),
                    ]
                else:
                    named[param] = values[source]
            values[name] = use(*args, **named)
        return values[calls[-1][0]]

    return random_workflow.graph()


@settings(max_examples=800, deadline=None)
@given(seed=SEEDS)
def test_python_written_and_python_again_is_the_same(seed):
    calls = random_program(seed)
    graph = traced(calls)
    assert len(graph.nodes) == len(calls)
    assert load_graph(dump_graph(graph), {}) == graph
    by_place = {name: spec.id for (name, *_), spec in zip(calls, graph.nodes, strict=True)} | {"prompt": "prompt"}
    for (_, use, inputs, given_settings), spec in zip(calls, graph.nodes, strict=True):
        expected = {k: by_place[v] if isinstance(v, str) else tuple(by_place[i] for i in v) for k, v in inputs.items()}
        assert (graph.functions[spec.id], spec.inputs, spec.settings) == (use, expected, given_settings)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("laws") / "w.yaml"


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_yaml_text_gives_the_graph_back_and_everything_can_be_drawn(path, seed):
    graph = traced(random_program(seed))
    path.write_text(dump_yaml(graph), encoding="utf-8")
    assert load_graph(path, {}) == graph
    text = draw_text(graph)
    assert all(spec.id in text for spec in graph.nodes)
    assert draw_svg(graph).count('class="box"') == len(graph.nodes)
