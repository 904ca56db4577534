"""Ids, what a workflow may not do with an output, and calls that cannot be."""

import operator
import subprocess
import sys

import pytest

from stretto.config.algorithms import PpoConfig
from stretto.errors import GraphError
from stretto.graph import boundary_inputs, load_workflow, models_of, node, trace, workflow
from stretto.types import Batch, Column, Credit, Group, Prompt, StepReport


@pytest.fixture(scope="module")
def ppo_workflow(kit):
    @workflow
    def ppo(prompt: Prompt, *, n: int = 8, algorithm: PpoConfig = PpoConfig()) -> StepReport:
        group = kit.rollout(prompt, n=n)
        scored = kit.score(group)
        batch = kit.collect(scored)
        ref = kit.logprobs(batch, on="reference") if algorithm.kl_coef else None
        value = kit.values(batch, on="critic")
        credit = kit.gae(batch, value=value, ref=ref, lam=algorithm.lam)
        fit = kit.fit_values(batch, credit=credit)
        learn = kit.update_policy(batch, credit=credit, ref=ref)
        return kit.report(fit, learn)

    return ppo


def test_ppo(ppo_workflow):
    graph = ppo_workflow.graph(n=4)
    ids = ["group", "scored", "batch", "ref", "value", "credit", "fit", "learn", "report"]
    assert [spec.id for spec in graph.nodes] == ids
    assert [spec.id for spec in graph.group_nodes] == ["group", "scored"]
    assert boundary_inputs(graph) == ("scored",)
    assert graph.by_id["credit"].inputs == {"batch": "batch", "value": "value", "ref": "ref"}
    assert graph.by_id["report"].inputs == {"reports": ("fit", "learn")}
    assert graph.by_id["group"].settings == {"n": 4}
    assert graph.settings["n"] == 4
    assert graph.output == "report"
    assert models_of(graph) == {
        "policy": {"generate", "train"},
        "reference": {"score"},
        "critic": {"score", "train"},
    }
    assert graph.by_id["scored"].roles["judge"].model is None


def test_a_workflow_is_a_function_of_its_settings(ppo_workflow):
    graph = trace(ppo_workflow, {"algorithm": PpoConfig(kl_coef=0.0, lam=0.5)})
    assert "ref" not in graph.by_id
    assert graph.by_id["credit"].settings == {"lam": 0.5}
    assert ppo_workflow.graph() == ppo_workflow.graph()
    assert ppo_workflow.graph(n=2) != ppo_workflow.graph()
    assert ppo_workflow.settings == {"n": 8, "algorithm": PpoConfig()}


@node
def blend(*parts: Column | Batch) -> Credit: ...


def ids_of(graph):
    return [spec.id for spec in graph.nodes]


def test_ids_are_the_names_results_are_assigned_to(kit):
    def critic(batch):
        estimate = kit.values(batch)
        return kit.gae(batch, value=estimate)

    def through(batch):
        return critic(batch)

    kept = {}

    @workflow
    def names(prompt: Prompt) -> StepReport:
        first: Group = kit.rollout(prompt)
        first = kit.score(first)
        batch = other = kit.collect(first)
        value, ref = kit.values(batch), kit.logprobs(other)
        if (walrus := kit.values(batch)) is None:
            raise AssertionError
        several = [kit.values(batch, on=model) for model in ("a", "b")]
        kept["x"] = kit.logprobs(batch)
        credit = through(batch)
        ref_, again = (kit.logprobs(batch) for _ in "ab")
        prompt = blend(value, ref, walrus, *several, kept["x"], ref_, again)
        learn = kit.update_policy(batch, credit=credit)
        del batch, other

        def inside():
            return kit.fit_values(blended, credit=prompt)

        blended = kit.collect(first)
        return kit.report(learn, inside())

    assert ids_of(names.graph()) == [
        "first",
        "first-2",
        "batch",
        "value",
        "ref",
        "walrus",
        "values",
        "values-2",
        "logprobs",
        "estimate",
        "credit",
        "ref_",
        "again",
        "prompt-2",
        "learn",
        "blended",
        "fit_values",
        "report",
    ]


def test_a_workflow_inside_a_workflow_becomes_part_of_it(kit):
    @workflow
    def prepare(prompt: Prompt, *, n: int = 3) -> Batch:
        return kit.collect(kit.rollout(prompt, n=n))

    @workflow
    def outer(prompt: Prompt) -> StepReport:
        batch = prepare(prompt, n=5)
        credit = kit.gae(batch, value=kit.values(batch))
        return kit.report(kit.update_policy(batch, credit=credit))

    graph = outer.graph()
    assert ids_of(graph) == ["rollout", "batch", "values", "credit", "update_policy", "report"]
    assert graph.by_id["rollout"].settings == {"n": 5}


SCRIPT = """
from stretto.graph import node, workflow
from stretto.types import Batch, Group, Prompt, StepReport
@node
def start(prompt: Prompt) -> Group: ...
@node
def collect(groups: tuple[Group, ...]) -> Batch: ...
@node
def finish(batch: Batch) -> StepReport: ...
@workflow
def mine(prompt: Prompt) -> StepReport:
    made = start(prompt)
    rows = collect(made)
    done = finish(rows)
    return done
g = mine.graph()
print(*(f"{s.id}={s.use}" for s in g.nodes))
import sys
print("torch" in sys.modules, "ray" in sys.modules, "transformers" in sys.modules)
"""


def test_code_without_a_file_has_ids_and_loads_no_torch():
    ran = subprocess.run([sys.executable], input=SCRIPT, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.splitlines() == [
        "made=python:start rows=python:collect done=python:finish",
        "False False False",
    ]


def refusals():
    def loop(e):
        for _ in e:
            pass

    def managed(e):
        with e:
            pass

    def attribute(e):
        e.reward = 1

    def item(e):
        e[0] = 1

    return {
        "bool": lambda e: 1 if e else 2,
        "not": operator.not_,
        "iter": loop,
        "unpack": lambda e: [*e],
        "len": len,
        "eq": lambda e: e == 1,
        "lt": lambda e: e < 1,
        "in": lambda e: 1 in e,
        "add": lambda e: e + 1,
        "radd": lambda e: 1 + e,
        "sub": lambda e: e - e,
        "matmul": lambda e: e @ e,
        "neg": operator.neg,
        "int": int,
        "float": float,
        "index": lambda e: [1, 2][e],
        "getitem": lambda e: e[0],
        "setitem": item,
        "attribute": lambda e: e.trajectories,
        "set attribute": attribute,
        "hasattr": lambda e: hasattr(e, "reward"),
        "call": lambda e: e(),
        "with": managed,
        "format": lambda e: f"{e}",
    }


@pytest.mark.parametrize("how", refusals())
def test_python_may_not_look_at_an_output(kit, how):
    @workflow
    def looks(prompt: Prompt) -> StepReport:
        group = kit.rollout(prompt)
        refusals()[how](group)
        return group

    with pytest.raises(GraphError, match=r"output of node 'group' \(rollout\).*Put this into a node"):
        looks.graph()


def test_awaiting_is_refused_and_printing_is_not(kit):
    @workflow
    def prints(prompt: Prompt) -> StepReport:
        group = kit.rollout(prompt)
        assert str(group) == "<the output of node 'group' (rollout)>"
        group.__await__()
        return group

    with pytest.raises(GraphError, match="awaits the value"):
        prints.graph()


def bad_calls(kit):
    return [
        (
            lambda p: kit.rollout(p, m=3),
            r"node 'rollout' has no input or setting 'm'. Did you mean 'n'\?|Known: n, prompt",
        ),
        (lambda p: kit.rollout(p, generate=1), "The runtime binds its roles; use on="),
        (lambda p: kit.rollout(p, n="8"), r"setting 'n' must be int, got '8' \(str\)"),
        (lambda p: kit.rollout(p, n=True), r"setting 'n' must be int, got True"),
        (lambda p: kit.rollout(p, on=3), "on= names a Model, got 3"),
        (lambda p: kit.score(kit.rollout(p), on="x"), r"node 'score' \(score\) is on='x' and has no role on a Model"),
        (lambda p: kit.rollout("hello"), r"input 'prompt' takes the output of a node, got 'hello' \(str\)"),
        (lambda p: kit.rollout(p, p), r"takes rollout\(prompt: .*, and was called otherwise: too many positional"),
        (lambda p: kit.gae(kit.collect(kit.rollout(p))), r"node 'gae' \(gae\) is missing its input 'value' \(Column\)"),
        (lambda p: kit.report(None), r"input '\*reports' takes the output of a node, got None"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_calls_that_cannot_be(kit, number):
    call, message = bad_calls(kit)[number]

    @workflow
    def wrong(prompt: Prompt) -> StepReport:
        return call(prompt)

    with pytest.raises(GraphError, match=message) as caught:
        wrong.graph()
    assert str(caught.value).startswith("workflow 'wrong': ")


def test_an_output_of_another_trace_is_refused(kit):
    leaked = []

    @workflow
    def leaks(prompt: Prompt) -> StepReport:
        if leaked:
            return kit.score(leaked[0])
        leaked.append(kit.rollout(prompt))
        return leaked[0]

    with pytest.raises(GraphError, match="made per group"):
        leaks.graph()
    with pytest.raises(GraphError, match="of another trace"):
        leaks.graph()


def test_workflows_that_cannot_be(kit):
    @workflow
    def nothing(prompt: Prompt) -> StepReport:
        return None

    with pytest.raises(GraphError, match=r"returned None \(NoneType\), and a workflow returns the output of a node"):
        nothing.graph()

    @workflow
    def promptless(batch: Batch) -> StepReport: ...

    with pytest.raises(GraphError, match="must take the prompt first"):
        promptless.graph()

    @workflow
    def positional(prompt: Prompt, n: int = 3) -> StepReport: ...

    with pytest.raises(GraphError, match="'n' must be a keyword with a default"):
        positional.graph()

    @workflow
    def untyped(prompt: Prompt, *, n=3) -> StepReport: ...

    with pytest.raises(GraphError, match="'n' is a setting and needs the type of one"):
        untyped.graph()

    with pytest.raises(GraphError, match=r"@workflow wraps a plain function"):

        @workflow
        async def later(prompt: Prompt) -> StepReport: ...


def test_settings_of_a_workflow(ppo_workflow):
    with pytest.raises(GraphError, match=r"workflow 'ppo' has no setting 'algoritm'. Did you mean 'algorithm'"):
        ppo_workflow.graph(algoritm=1)
    with pytest.raises(GraphError, match=r"workflow 'ppo': setting 'n' must be int, got 1.5 \(float\)"):
        ppo_workflow.graph(n=1.5)
    with pytest.raises(GraphError, match=r"Trace it with ppo.graph\(\)"):
        ppo_workflow(3)


def test_the_annotated_return_must_fit(kit):
    @workflow
    def lies(prompt: Prompt) -> Batch:
        batch = kit.collect(kit.rollout(prompt))
        return kit.update_policy(batch, credit=kit.gae(batch, value=kit.values(batch)))

    with pytest.raises(GraphError, match="says it returns Batch, and returns 'update_policy', which is UpdateReport"):
        lies.graph()


def test_loading_a_workflow_by_name():
    with pytest.raises(GraphError, match="there is no module 'nowhere_at_all'"):
        load_workflow("nowhere_at_all:mine")
    with pytest.raises(GraphError, match=r"there is no 'trase' in it. Did you mean 'trace'"):
        load_workflow("stretto.graph.tracing:trase")
    with pytest.raises(GraphError, match="Put @workflow on the function"):
        load_workflow("stretto.graph.tracing:trace")
