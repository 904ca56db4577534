"""Running the two parts: order, branches at the same time, the first failure, what is left behind."""

import asyncio

import pytest

from stretto.graph import boundary_inputs, load_graph, node, run_group, run_step, workflow
from stretto.roles import Generate
from stretto.testing import make_group, make_prompt
from stretto.types import Batch, Group, Metric, Prompt, StepReport


@node
def start(prompt: Prompt) -> Group:
    return make_group(0)


@node
async def left(group: Group, *, plus: int = 1) -> Group:
    return make_group(group.draw + plus)


@node
async def right(group: Group, generate: Generate) -> Group:
    return make_group(group.draw + 20)


@node
def merge(*groups: Group) -> Group:
    return make_group(sum(group.draw for group in groups))


@node
def gather(*groups: tuple[Group, ...]) -> Batch:
    return Batch(groups=tuple(g for part in groups for g in part))


@node
def count(batch: Batch, more: Batch | None = None) -> StepReport:
    return StepReport(metrics={"draws": Metric("sum", sum(g.draw for g in batch.groups))})


@workflow
def diamond(prompt: Prompt) -> StepReport:
    a = start(prompt)
    b = left(a, plus=3)
    c = right(a)
    d = merge(b, c, a)
    return count(gather(d, b))


GRAPH = diamond.graph()


def test_real_functions_run_through():
    async def invoke(spec, inputs):
        roles = {name: role.model for name, role in spec.roles.items()}
        return await GRAPH.call(spec, inputs, roles)

    values = asyncio.run(run_group(GRAPH, make_prompt(), invoke))
    assert {id: value.draw for id, value in values.items() if id != "prompt"} == {"a": 0, "b": 3, "c": 20, "d": 23}
    assert boundary_inputs(GRAPH) == ("b", "d")
    groups = {id: (values[id], values[id]) for id in boundary_inputs(GRAPH)}
    done = run_step(GRAPH, groups, lambda spec, inputs: GRAPH.call(spec, inputs, {}))
    assert list(done) == ["gather", "count"]
    assert done["count"].metrics["draws"].value == 2 * (23 + 3)


def test_branches_run_at_the_same_time():
    async def main():
        both = asyncio.Barrier(2)

        async def invoke(spec, inputs):
            if spec.id in ("b", "c"):
                await both.wait()
            return spec.id

        return await asyncio.wait_for(run_group(GRAPH, make_prompt(), invoke), 5)

    assert asyncio.run(main())["d"] == "d"


def test_the_first_failure_cancels_the_others_and_is_raised():
    seen = []

    async def invoke(spec, inputs):
        seen.append(spec.id)
        if spec.id == "b":
            await asyncio.sleep(0)
            raise ZeroDivisionError("b broke")
        if spec.id == "c":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("c cancelled")
                raise
        return spec.id

    async def main():
        with pytest.raises(ZeroDivisionError, match="b broke"):
            await run_group(GRAPH, make_prompt(), invoke)
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(main()) == []
    assert seen == ["a", "b", "c", "c cancelled"]


def test_failures_at_the_same_time_are_all_told():
    async def invoke(spec, inputs):
        if spec.id in ("b", "c"):
            raise ValueError(f"{spec.id} broke")
        return spec.id

    with pytest.raises(ValueError, match="b broke") as caught:
        asyncio.run(run_group(GRAPH, make_prompt(), invoke))
    assert caught.value.__notes__ == ["Node 'c' failed as well: ValueError: c broke"]


@pytest.mark.parametrize("where", ["a", "b"])
def test_cancelling_the_draw_cancels_its_nodes(where):
    cancelled = []

    async def main():
        begun = asyncio.Event()

        async def invoke(spec, inputs):
            if spec.id >= where:
                begun.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(spec.id)
                    raise
            return spec.id

        task = asyncio.create_task(run_group(GRAPH, make_prompt(), invoke))
        await begun.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert cancelled == (["a"] if where == "a" else ["b", "c"])


def test_a_failing_step_node_stops_the_step():
    ran = []

    def invoke(spec, inputs):
        ran.append(spec.id)
        raise RuntimeError(spec.id)

    with pytest.raises(RuntimeError, match="gather"):
        run_step(GRAPH, {"b": (), "d": ()}, invoke)
    assert ran == ["gather"]


def test_steps_run_in_plan_order(kit, ppo):
    ppo["nodes"] = ppo["nodes"][::-1]
    graph = load_graph(ppo, kit.all)
    ran = []
    run_step(graph, {"scored": ()}, lambda spec, inputs: ran.append(spec.id))
    # Among nodes that are ready, the one defined first.
    assert ran == ["batch", "value", "ref", "credit", "learn", "fit", "done"]
