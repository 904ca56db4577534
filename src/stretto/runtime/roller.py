"""A roller: one engine with what judges its samples, and the per-group part of the graph that runs on it.

    attempt   a draw, from its prompt to the groups that the boundary reads; they stay in the data plane
    try_one   attempts at a prompt of an evaluation set, of which only what is counted and shown is kept
    probe     a few samples, to be compared with the trainer's log-probs

Rollers share nothing, and what comes of a draw does not depend on which of them made it. Owns no schedule: which draw
runs when, and what becomes of its groups, is decided by the driver.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from stretto.config.by_step import ByStep
from stretto.data.seeds import Namespace, evaluation_seed
from stretto.data.tokens import Tokenizer
from stretto.environments.episodes import Episodes
from stretto.environments.judge import GroupDropped
from stretto.errors import ConfigError, EngineError
from stretto.graph import NodeSpec, boundary_inputs, run_group
from stretto.roles import BatchInvariant, DataPlane, EngineStatus, MemoryLevel, Ref, RolloutEngine, Sampling, TurnBudget
from stretto.runtime.binding import GroupBinding, GroupJudge
from stretto.runtime.calling import call_group_node, check_group
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped
from stretto.runtime.eval_sets import EvalSet
from stretto.runtime.phases import Phase
from stretto.runtime.tried import Tried, kept
from stretto.store import NodeState, NodeTime
from stretto.types import Group, Occasion, Prompt
from stretto.workflows.nodes import rollout

__all__ = ["Attempted", "Draw", "Keep", "Roller", "Rolling"]

Keep = Callable[[str, Mapping[str, Group], str], None]
"""Writes the groups of a draw into the record: the phase's name, the groups by node, why a filter dropped them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A draw to make: of phase ``phase`` (its place), the prompt at ``item``, admitted for ``step``."""

    phase: int
    draw: int
    item: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempted:
    """What came of a draw: groups, unless its failure policy ``dropped`` it; a filter drops it with its groups.
    ``failure``: what ends the run. ``by``: who has written the groups into the record, if the driver need not."""

    drawn: Drawn | None
    dropped: Dropped | None
    nodes: tuple[NodeTime, ...]
    failure: Exception | None = None
    by: str = ""


class Rolling(Protocol):
    """A roller, here or in a process of its own."""

    async def attempt(self, draw: Draw) -> Attempted:
        """Make a draw. Cancelling it gives the draw up."""
        ...

    async def try_one(self, key: tuple[str, str], index: int, step: int, steps: int | None) -> Tried | None:
        """Attempts at prompt ``index`` of the evaluation set ``key`` (phase, name), after ``step`` of ``steps`` steps;
        None if the failure policy drops it."""
        ...

    async def probe(self, phase: int, items: Sequence[int], sampling: Sampling) -> tuple[Ref, ...]:
        """Two samples each at these prompts, without an environment."""
        ...

    async def probe_invariance(self) -> None:
        """Check that the engine is batch-invariant. ConfigError if it does not promise to be, EngineError if not."""
        ...

    async def set_memory(self, level: MemoryLevel) -> None:
        """Release the engine's device memory, or take it back."""
        ...

    async def status(self) -> EngineStatus:
        """How its engine stands."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roller:
    """Implements ``Rolling`` in this process. ``judges``: those of evaluation sets by their keys, the recipe's as "".

    ``keep`` writes groups into the record here; None: the driver does. ``name``: by which the record calls it then.
    """

    engine: RolloutEngine
    judges: Mapping[str, GroupJudge]
    tokenizer: Tokenizer
    seed: int
    deadline_s: float
    plane: DataPlane
    phases: Sequence[Phase] = ()
    episodes: Episodes | None = None
    budget: TurnBudget | None = None
    keep: Keep | None = None
    name: str = ""

    def binding(
        self, namespace: Namespace, sampling: Sampling, steps: int | None = None, temperature: ByStep | None = None
    ) -> GroupBinding:
        """What serves per-group nodes whose draws are counted in ``namespace``, in a phase of ``steps``.

        ``temperature``: in place of the sampling's, where it changes by step.
        """
        return GroupBinding(
            engine=self.engine,
            judge=self.judges[""],
            tokenizer=self.tokenizer,
            sampling=sampling,
            deadline_s=self.deadline_s,
            seed=self.seed,
            namespace=namespace,
            episodes=self.episodes,
            budget=self.budget,
            steps=steps,
            temperature=temperature,
        )

    async def attempt(self, draw: Draw) -> Attempted:
        """As ``Rolling`` says."""
        phase = self.phases[draw.phase]
        binding = self.binding(phase.namespace, phase.sampling, phase.steps, phase.temperature)
        bind = partial(binding.bind, draw=draw.draw, step=draw.step)
        times: list[NodeTime] = []

        async def invoke(spec: NodeSpec, inputs: Mapping[str, object]) -> object:
            return await _timed(phase, spec, inputs, bind(spec), times)

        try:
            values = await run_group(phase.graph, phase.prompts[draw.item], invoke)
            groups = {id: check_group(id, values[id], draw.draw) for id in boundary_inputs(phase.graph)}
            dropped = phase.filter.judge(draw.draw, groups)
        except GroupDropped as failure:
            return Attempted(drawn=None, dropped=Dropped(kind="failed", why=str(failure)), nodes=tuple(times))
        except Exception as failure:  # noqa: BLE001 - carried to the driver, which ends the run with it
            return Attempted(drawn=None, dropped=None, nodes=tuple(times), failure=failure)
        if self.keep is not None:
            self.keep(phase.name, groups, dropped.why if dropped is not None else "")
        drawn = Drawn.of(draw.draw, groups, self.plane)
        return Attempted(drawn=drawn, dropped=dropped, nodes=tuple(times), by=self.name)

    async def try_one(self, key: tuple[str, str], index: int, step: int, steps: int | None) -> Tried | None:
        """As ``Rolling`` says."""
        eval_set = next(s for phase in self.phases if phase.name == key[0] for s in phase.sets if s.name == key[1])
        return await self.try_prompt(eval_set, index, step, steps)

    async def try_prompt(self, eval_set: EvalSet, index: int, step: int = 0, steps: int | None = None) -> Tried | None:
        """Attempts at one prompt of a set."""
        prompt = eval_set.everything[index]
        seed = evaluation_seed(self.seed, eval_set.name)
        binding = replace(self.binding("evaluation", eval_set.sampling), seed=seed)
        generate, tokens = binding.generate("policy", index), binding.tokenize(index)
        group = await rollout(prompt, generate, tokens, binding.environment(index), n=eval_set.n)
        occasion = Occasion(phase="evaluation", step=step, steps=steps, seed=self.seed)
        try:
            judged = await self.judges[eval_set.judge].judge(group, occasion)
        except GroupDropped:
            return None
        return Tried(prompt=prompt, attempts=tuple(kept(eval_set, prompt, t) for t in judged.attempts))

    async def probe(self, phase: int, items: Sequence[int], sampling: Sampling) -> tuple[Ref, ...]:
        """As ``Rolling`` says."""
        groups = await self.sample([self.phases[phase].prompts[item] for item in items], sampling)
        return tuple(self.plane.put((group,)) for group in groups)

    async def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Group]:
        """Two samples each. EngineError if the weights that the engine holds give none."""
        binding = replace(self.binding("evaluation", sampling), episodes=None, budget=None)  # one turn says enough
        groups: list[Group] = []
        try:
            for draw, prompt in enumerate(prompts):
                generate, tokens = binding.generate("policy", draw), binding.tokenize(draw)
                groups.append(await rollout(prompt, generate, tokens, binding.environment(draw), n=2))
        except EngineError as error:
            raise EngineError(
                "the engine cannot sample from the weights that were just published, as if some had not arrived: "
                f"{error}"
            ) from error
        return groups

    async def probe_invariance(self) -> None:
        """As ``Rolling`` says."""
        if not isinstance(self.engine, BatchInvariant):
            raise ConfigError(
                f"schedule.deterministic=true needs a batch-invariant engine, and {type(self.engine).__name__} does "
                "not promise to be one. Set schedule.deterministic=false, or use engine.type=native."
            )
        await self.engine.probe_invariance()

    async def set_memory(self, level: MemoryLevel) -> None:
        """As ``Rolling`` says."""
        await self.engine.set_memory(level)

    async def status(self) -> EngineStatus:
        """As ``Rolling`` says."""
        return await self.engine.status()


async def _timed(
    phase: Phase, spec: NodeSpec, inputs: Mapping[str, object], handles: Mapping[str, object], times: list[NodeTime]
) -> object:
    """The value of a node; when it ran, and how it ended, goes into ``times``."""
    start, begin = time.time(), time.perf_counter()
    state: NodeState = "cancelled"
    try:
        value = await call_group_node(phase.graph, spec, inputs, handles)
        state = "done"
        return value
    except Exception:
        state = "failed"
        raise
    finally:
        duration = time.perf_counter() - begin
        times.append(NodeTime(id=spec.id, start_s=start, duration_s=duration, state=state))
