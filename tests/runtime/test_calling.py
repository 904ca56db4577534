"""A node that fails in any way, or gives what it does not say, ends the run with an error that names it. No draw is
ever waited for in vain."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stretto.config.load import recipe_from_mapping
from stretto.environments.rewards import Reward
from stretto.errors import NodeError, PoolError
from stretto.graph import Workflow, node, workflow
from stretto.runtime.attempt import attempt
from stretto.runtime.build import Given, prepare
from stretto.store import Event, RunSpec, RunStore, RunView
from stretto.types import Batch, Group, Metric, Prompt, StepReport, Trajectory
from stretto.workflows.nodes import advantages, collect, report, rollout, score, update_policy

Observer = Callable[[Event], None]


def by_tokens(prompt: Prompt, trajectory: Trajectory) -> float:
    return float(trajectory.token_ids_T.sum() % 5)


def run(
    flow: Workflow, folder: Path, judge: Reward = by_tokens, observer: Observer | None = None, /, **sections: Any
) -> RunView:
    """A run on fakes; one that waits in vain fails after a while."""
    tree: dict[str, Any] = {
        "steps": 2,
        "engine": {"type": "fake"},
        "backend": {"type": "fake"},
        "prompts": {"type": "builtin", "name": "addition", "max": 4},
        "schedule": {"groups_per_step": 3},
        "reward": {"use": "python:given", "workers": 0},
        "evaluate": {"at_start": False, "at_end": False},
    }
    tree |= {name: {**tree.get(name, {}), **value} for name, value in sections.items()}
    job = prepare(recipe_from_mapping(tree), Given(workflow=flow, reward=judge))
    config = job.recipe.model_dump(mode="json")
    with RunStore.create(folder, RunSpec(hint="run", name="run", config=config, seed=0, steps=2)) as store:
        if observer is not None:
            store.subscribe(observer)
        asyncio.run(asyncio.wait_for(attempt(job, store, asyncio.Event()), 60))
    return RunView(store.path)


def flow_of(group_does: Callable[[Group], Group] | None = None, step_does: Callable[[Batch], Batch] | None = None):
    @node
    def mine(group: Group) -> Group:
        return group_does(group) if group_does else group

    @node
    async def other(group: Group) -> Group:
        await asyncio.sleep(0.01)
        return group

    @node
    def both(one: Group, two: Group) -> Group:
        assert one.draw == two.draw
        return one

    @node
    def ours(batch: Batch) -> Batch:
        return step_does(batch) if step_does else batch

    @workflow
    def flow(prompt: Prompt, *, n: int = 2) -> StepReport:
        group = score(rollout(prompt, n=n))
        first = mine(group)
        second = other(group)
        joined = both(first, second)
        batch = collect(joined)
        seen = ours(batch)
        credit = advantages(seen)
        return report(update_policy(seen, credit=credit))

    return flow


def raises(error: BaseException) -> Callable[[object], NoReturn]:
    def fail(value: object) -> NoReturn:
        raise error

    return fail


FAILURES = [ValueError("mine"), SystemExit(0), KeyboardInterrupt(), BaseException("panic"), asyncio.CancelledError()]
NAMES = [type(error).__name__ for error in FAILURES]


@pytest.mark.parametrize("error", FAILURES, ids=NAMES)
@pytest.mark.parametrize("world", ["group", "step"])
def test_whatever_a_node_raises_fails_the_run_and_names_the_node(tmp_path, world, error):
    # pitfall 34: sys.exit(0) in a node is no success
    flow = flow_of(group_does=raises(error)) if world == "group" else flow_of(step_does=raises(error))
    id = "first" if world == "group" else "seen"
    with pytest.raises(NodeError, match=f"node '{id}' .* failed: {type(error).__name__}.*test_calling.py") as caught:
        run(flow, tmp_path)
    assert caught.value.__cause__ is error
    view = RunView(tmp_path / "run")
    assert view.status == "failed"
    assert "test_calling.py" in view.errors()[-1].traceback


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        (lambda group: None, "gave a NoneType, and it says that it gives Group"),
        (lambda group: group.trajectories, "gave a tuple, and it says that it gives Group"),
        (lambda group: Group(draw=99, prompt=group.prompt, trajectories=group.trajectories), "a group of draw 99"),
        (lambda group: Group(draw=group.draw, prompt=group.prompt, trajectories=()), "a group without trajectories"),
    ],
)
def test_a_per_group_node_gives_a_group_of_its_draw(tmp_path, gives, says):
    @node
    def last(group: Group) -> Group:
        return gives(group)

    @workflow
    def flow(prompt: Prompt, *, n: int = 2) -> StepReport:
        handed = last(score(rollout(prompt, n=n)))
        batch = collect(handed)
        return report(update_policy(batch, credit=advantages(batch)))

    with pytest.raises(NodeError, match=f"node 'handed' .*{says}"):
        run(flow, tmp_path)


def test_a_per_step_node_gives_what_it_says(tmp_path):
    with pytest.raises(NodeError, match=r"node 'seen' .* gave a NoneType, and it says that it gives Batch"):
        run(flow_of(step_does=lambda batch: None), tmp_path)  # pyright: ignore


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("staleness", [0, 1])
def test_drops_without_end_fail_with_their_reasons(tmp_path, deterministic, staleness):
    # pitfall 30
    def never(prompt: Prompt, trajectory: Trajectory) -> float:
        raise ValueError("never any")

    schedule = {"deterministic": deterministic, "max_staleness": staleness, "max_refills": 2}
    with pytest.raises(PoolError, match=r"Step 0 could not be filled.*never any"):
        run(flow_of(), tmp_path, never, reward={"on_error": "drop", "max_dropped": 1.0}, schedule=schedule)


@pytest.mark.parametrize("kind", ["phase", "publish", "group", "node", "step", "checkpoint"])
def test_an_observer_that_raises_fails_the_run(tmp_path, kind):
    def observer(event: Event) -> None:
        if event.kind == kind:
            raise RuntimeError("observer")

    with pytest.raises(RuntimeError, match="observer"):
        run(flow_of(), tmp_path, by_tokens, observer)


def test_what_nodes_may_give():
    from stretto.graph.annotations import classes_of

    assert isinstance(3, classes_of(float))
    assert isinstance(None, classes_of(Metric | None))
    assert not isinstance("3", classes_of(float | None))
    assert isinstance((1,), classes_of(tuple[Group, ...]))
    assert isinstance(object(), classes_of(object))
