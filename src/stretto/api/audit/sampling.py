"""Samples a few groups by the recipe's own workflow, as the first steps of its main phase would, and times them.

Owns opening the model and the waves of prompts. What the groups say is in ``learning.py``. Nothing is trained or kept.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.api.audit.scoring import Fault, fault_of
from stretto.errors import ConfigError, RewardError
from stretto.graph import Graph, NodeSpec, boundary_inputs, run_group
from stretto.roles import Completion, Request, RolloutEngine
from stretto.runtime.binding import GroupBinding, GroupJudge
from stretto.runtime.build import Given, Job
from stretto.runtime.calling import call_group_node, check_group
from stretto.runtime.disposer import Disposer
from stretto.runtime.graphs import main_graph
from stretto.runtime.opening import open_parts
from stretto.types import Group, Occasion

__all__ = ["Sampled", "sample_groups"]

_FIRST_WAVE = 2
"""Prompts of the first wave; each later one is twice as large, as long as time is left."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """Groups that were sampled and judged, and what failed instead.

    ``tokens`` were written in ``seconds`` by the largest wave, of ``sequences`` attempts at a time; ``judged_s``:
    seconds the judge took for each group. ``late``: it ended for want of time.
    """

    groups: tuple[Group, ...]
    faults: tuple[Fault, ...]
    tokens: int
    seconds: float
    sequences: int
    judged_s: tuple[float, ...]
    late: bool = False


@dataclass(slots=True, eq=False)
class _Watch:
    """When the engine worked and what it wrote, since the last reset."""

    begin: float = 0.0
    end: float = 0.0
    tokens: int = 0
    sequences: int = 0
    judged_s: list[float] = field(default_factory=list[float])

    def reset(self) -> None:
        self.begin, self.end, self.tokens, self.sequences = time.perf_counter(), time.perf_counter(), 0, 0


@dataclass(frozen=True, slots=True)
class _WatchedEngine:
    """The part of an engine that a binding uses, with the time."""

    engine: RolloutEngine
    watch: _Watch

    async def generate(self, request: Request) -> AsyncIterator[Completion]:
        if request.id.endswith("/0"):  # a later turn goes on with an attempt that was counted
            self.watch.sequences += len(request.seeds)
        async for completion in self.engine.generate(request):
            self.watch.tokens += len(completion.token_ids_T)
            self.watch.end = time.perf_counter()
            yield completion


@dataclass(frozen=True, slots=True)
class _WatchedJudge:
    judge_: GroupJudge
    watch: _Watch

    async def judge(self, group: Group, occasion: Occasion) -> Group:
        start = time.perf_counter()
        judged = await self.judge_.judge(group, occasion)
        self.watch.judged_s.append(time.perf_counter() - start)
        return judged


async def sample_groups(job: Job, given: Given, *, prompts: int, samples: int | None, budget_s: float) -> Sampled:
    """Groups of the first prompts of the main phase, as many as ``prompts`` and about ``budget_s`` seconds allow.

    One pass over the prompts is enough, unless all rewards are equal: then it goes on, since a few samples say little.
    ``samples``: siblings of a group instead of the recipe's; a workflow that has its own refuses (ConfigError). The
    policy is the recipe's model as it is before any training.
    """
    recipe = job.recipe
    update: dict[str, object] = {"reward": recipe.reward.model_copy(update={"on_error": "fail"})}
    if recipe.environment is not None:
        update["environment"] = recipe.environment.model_copy(update={"on_error": "fail"})
    graph = job.phases[-1].graph
    if samples is not None:
        update["sampling"] = recipe.sampling.model_copy(update={"n": samples})
        graph = main_graph(recipe.model_copy(update=update), given.workflow)
    phase = job.phases[-1]
    async with Disposer() as disposer:
        parts = await open_parts(replace(job, recipe=recipe.model_copy(update=update)), disposer)
        await parts.publish(0)
        plain = parts.binding(phase.namespace, phase.sampling, phase.steps)
        watch = _Watch()
        binding = replace(plain, engine=_WatchedEngine(plain.engine, watch), judge=_WatchedJudge(plain.judge, watch))
        return await _waves(job, graph, binding, watch, prompts, budget_s)


async def _waves(
    job: Job, graph: Graph, binding: GroupBinding, watch: _Watch, prompts: int, budget_s: float
) -> Sampled:
    """Waves of more and more prompts; only whole ones are counted, so that the clock chooses no answers."""
    start = time.perf_counter()
    one_pass = min(prompts, len(job.train))
    groups: list[Group] = []
    faults: list[Fault] = []
    done, wave = 0, _FIRST_WAVE
    tokens = sequences = 0
    seconds = 0.0
    while done < one_pass or (done < prompts and not faults and _all_equal(groups)):
        began = time.perf_counter()
        watch.reset()
        draws = range(done, min(done + wave, one_pass if done < one_pass else prompts))
        for result in await asyncio.gather(*(_draw(job, graph, binding, draw) for draw in draws)):
            if isinstance(result, Fault):
                faults.append(result)
            else:
                groups += result
        if watch.sequences > sequences:
            tokens, sequences, seconds = watch.tokens, watch.sequences, watch.end - watch.begin
        done, wave = done + len(draws), 2 * wave
        now = time.perf_counter()
        if now - start + 2 * (now - began) > budget_s:
            break
    return Sampled(
        groups=tuple(groups),
        faults=tuple(faults),
        tokens=tokens,
        seconds=seconds,
        sequences=sequences,
        judged_s=tuple(watch.judged_s),
        late=done < one_pass,
    )


def _all_equal(groups: Sequence[Group]) -> bool:
    return len({t.reward for group in groups for t in group.attempts}) == 1


def _as_judged(group: Group) -> Group:
    """The attempts that are trained on, with the rewards that the judge gave: those before a charge on their length."""
    sampled = (t for t in group.trajectories if not t.is_baseline)
    return replace(group, trajectories=tuple(replace(t, reward=t.uncharged) for t in sampled))


async def _draw(job: Job, graph: Graph, binding: GroupBinding, draw: int) -> list[Group] | Fault:
    """What the workflow hands to the step for one draw, or the fault of the environment or the reward."""

    async def invoke(spec: NodeSpec, inputs: Mapping[str, object]) -> object:
        return await call_group_node(graph, spec, inputs, binding.bind(spec, draw))

    try:
        values = await run_group(graph, job.phases[-1].prompt_of(draw), invoke)
    except RewardError as error:
        return fault_of(error)
    groups = [_as_judged(check_group(id, values[id], draw)) for id in boundary_inputs(graph)]
    if not groups:
        raise ConfigError(f"workflow {graph.name!r} hands no group to its steps, so there is nothing to look at.")
    return groups
