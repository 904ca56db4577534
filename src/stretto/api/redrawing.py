"""A per-group node of a recorded draw, run again in the calling thread, with rewards and environments called there.

Owns what is opened for it, which draw is meant, and how what comes of it is held against the record.
"""

import time
from collections.abc import Mapping
from dataclasses import replace

from stretto.api.replaying import Breakpoints, Debugged, NodeRow, Place, began
from stretto.config.recipe import Recipe
from stretto.environments.judge import RewardJudge
from stretto.errors import ConfigError
from stretto.graph import Graph, NodeSpec
from stretto.runtime.binding import GroupBinding
from stretto.runtime.calling import call_group_node
from stretto.runtime.disposer import Disposer
from stretto.runtime.edges import Leaf, describe, leaf_hash, leaves_of
from stretto.runtime.opening import open_parts
from stretto.runtime.redraw import Drawing, make_again, sampled_of, version_of
from stretto.runtime.replay import Replay, Start, start_before
from stretto.runtime.saved import one_boundary
from stretto.store import Difference, GroupBody, NodeBody
from stretto.testing import FakeEngine
from stretto.types import Group

__all__ = ["draw_again"]


async def draw_again(at: Place, spec: NodeSpec, draw: int | None, breakpoints: Breakpoints) -> Debugged:
    """A per-group node for one draw: from the record if it holds what the node needs, else with an engine."""
    drawing = _drawing(at, draw)
    known = sampled_of(at.graph, spec.id, drawing)
    rows: list[NodeRow] = []

    async def call(graph: Graph, of: NodeSpec, inputs: Mapping[str, object], roles: Mapping[str, object]) -> object:
        begin = time.perf_counter()
        with breakpoints.opened(of.id == spec.id):
            value = await call_group_node(graph, of, inputs, roles)
        rows.append(NodeRow(id=of.id, use=of.use, runs=1, seconds=time.perf_counter() - begin, gave=describe(value)))
        return value

    origin, notes = "what the run recorded of the draw", ()
    async with Disposer() as disposer:
        if known is not None:
            binding = await _judging_alone(at, disposer)
        else:
            version = version_of(drawing, at.phase)
            start = start_before(at.past, at.job, at.index, version)
            binding = await _sampling(at, start, version, disposer)
            origin, notes = f"{began(start, at.index, version)}, published as weights {version}", start.skipped
        values = await make_again(at.phase, binding, drawing, spec.id, known or {}, call)
    differing, compared = _differences(at.graph, spec, drawing, values[spec.id])
    return Debugged(
        run=at.view.name,
        phase=at.phase.name,
        step=at.step,
        deterministic=at.job.recipe.schedule.deterministic,
        node=spec.id,
        draw=drawing.draw,
        began=origin,
        nodes=tuple(rows),
        values=values,
        compared=compared,
        differing=differing,
        notes=notes,
    )


async def _judging_alone(at: Place, disposer: Disposer) -> GroupBinding:
    """What serves nodes behind the sampling: rewards in this process. Nothing is sampled."""
    recipe = _in_this_process(at.job.recipe)
    judge = RewardJudge(recipe.reward, at.job.rewards, deterministic=recipe.schedule.deterministic)
    disposer.own("the rewards", judge, judge.close)
    await judge.start()
    return GroupBinding(
        engine=FakeEngine(),  # a place holder: no node that samples is run
        judge=judge,
        tokenizer=at.job.tokenizer,
        sampling=at.phase.sampling,
        deadline_s=recipe.sampling.deadline_s,
        seed=recipe.seed,
        namespace=at.phase.namespace,
        steps=at.phase.steps,
    )


async def _sampling(at: Place, start: Start, version: int, disposer: Disposer) -> GroupBinding:
    """What serves all per-group nodes: an engine with the weights that sampled in the run."""
    parts = await open_parts(replace(at.job, recipe=_in_this_process(at.job.recipe)), disposer)
    replay = Replay(at.job, parts.backend, at.past)

    def train() -> None:
        replay.begin(start)
        replay.until(at.index, version)

    await parts.worker.call(train)
    await parts.publish(version)
    return parts.binding(at.phase.namespace, at.phase.sampling, at.phase.steps)


def _in_this_process(recipe: Recipe) -> Recipe:
    """The recipe with rewards and environments called here: breakpoints open, no time is up, and failures are said."""
    here: dict[str, object] = {"workers": 0, "on_error": "fail"}
    update: dict[str, object] = {"reward": recipe.reward.model_copy(update=here)}
    if recipe.environment is not None:
        update["environment"] = recipe.environment.model_copy(update=here)
    return recipe.model_copy(update=update)


def _drawing(at: Place, draw: int | None) -> Drawing:
    """The draw to make again: ``draw``, or the one at which the run failed in this step, or the step's first."""
    recorded = {r.group.draw: r for r in at.past.groups(at.phase.name, at.step)}
    failed, dropped = _failed_draws(at), _dropped_draws(at)
    there = sorted({*recorded, *dropped, *failed})
    chosen = draw if draw is not None else next(iter([*failed, *there]), None)
    if chosen is None or chosen not in there:
        asked = "no draw" if chosen is None else f"no draw {chosen}"
        known = f"Its draws are {', '.join(map(str, there))}" if there else "Choose a step that was begun"
        raise ConfigError(
            f"run {at.view.name!r} has recorded {asked} of step {at.step} of phase {at.phase.name}. {known}."
        )
    if chosen in recorded:
        found = recorded[chosen]
        return Drawing(draw=chosen, prompt=found.group.prompt, step=at.step, recorded=found)
    if at.phase.order.type == "success":
        raise ConfigError(
            f"draw {chosen} left no group, and which prompt it had was decided by what came before "
            "(order.type=success), so it cannot be drawn again. Choose a draw with a group by --draw."
        )
    return Drawing(draw=chosen, prompt=at.phase.prompt_of(chosen), step=at.step, recorded=None)


def _failed_draws(at: Place) -> list[int]:
    """The draws at which the run failed in this step, if it is the one that it was in: its newest attempt's."""
    if at.step != at.past.steps(at.phase.name).stop:
        return []
    last = max(e.attempt for e in at.view.all_events)
    return [
        e.body.draw
        for e in at.view.all_events
        if isinstance(e.body, NodeBody) and e.body.state == "failed" and e.body.draw is not None
        if (e.phase, e.attempt) == (at.phase.name, last)
    ]


def _dropped_draws(at: Place) -> list[int]:
    """The draws of the step that left no group."""
    return [
        e.body.draw
        for e in at.view.events
        if isinstance(e.body, GroupBody) and e.body.state == "dropped" and (e.phase, e.step) == (at.phase.name, at.step)
    ]


def _differences(graph: Graph, spec: NodeSpec, drawing: Drawing, value: object) -> tuple[tuple[Difference, ...], int]:
    """How the group that was made now differs from the recorded one, as far as they can be held against each other:
    all of it if the node is the one whose groups are recorded, what was sampled if it is the one that samples."""
    samples = any(role.kind == "generate" for role in spec.roles.values())
    whole = spec.id == one_boundary(graph)
    if drawing.recorded is None or not isinstance(value, Group) or not (whole or samples):
        return (), 0
    a, b = (
        {name: leaf for name, leaf in leaves_of(group) if whole or not _is_reward(name)}
        for group in (drawing.recorded.group, value)
    )
    names = [name for name in {**a, **b} if name not in a or name not in b or leaf_hash(a[name]) != leaf_hash(b[name])]
    found = (Difference(where=name, a=_brief(a.get(name)), b=_brief(b.get(name))) for name in names)
    return tuple(found), len({**a, **b})


def _is_reward(name: str) -> bool:
    return name.rpartition(".")[2] == "reward" or ".rewards." in name


def _brief(leaf: Leaf | None) -> str:
    if leaf is None:
        return "absent"
    text = leaf if isinstance(leaf, str) else str(leaf.tolist())
    return text if len(text) <= 80 else f"{text[:77]}..."
