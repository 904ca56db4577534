"""The phases of a run as values: a supervised warm-up, if the recipe has one, then the main phase.

A phase is a graph with its extent, order of prompts, learning rates and periodic work. Pure, but for ``begin``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.algorithms.schedules import lr_at
from stretto.config.backends import TorchBackendConfig
from stretto.config.by_step import ByStep, scheduled, value_at
from stretto.config.evaluation import EvaluateConfig
from stretto.config.orders import Order, ShuffledOrder
from stretto.config.recipe import Recipe
from stretto.config.sections import ExportConfig, SaveConfig
from stretto.data.order import draws_of
from stretto.data.seeds import Namespace
from stretto.graph import Graph, models_of
from stretto.roles import InFlight, Sampling, TrainBackend
from stretto.runtime.eval_sets import EvalSet
from stretto.runtime.filters import Filter
from stretto.runtime.graphs import OWN_WEIGHTS
from stretto.runtime.orders import PromptOrder, order_maker
from stretto.runtime.pool import PoolConfig
from stretto.runtime.saved import SavedGroups, check_saved
from stretto.types import Prompt

__all__ = ["Phase", "main_phase", "warmup_phase", "with_saved"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """One phase. ``steps`` is its planned length; ``until`` may end it earlier. ``open_order`` makes a fresh order.

    Without ``trains`` its groups are sampled and recorded only; with ``saved`` they come from another run's record.
    ``scheduled``: the recipe's values by step that act in it, by their keys; ``temperature`` is one, if it is by step.
    """

    name: str
    graph: Graph
    steps: int
    pool: PoolConfig
    namespace: Namespace
    sampling: Sampling
    prompts: Sequence[Prompt]
    order: Order
    open_order: Callable[[], PromptOrder]
    filter: Filter
    lr: Callable[[str, int], float]
    evaluate: EvaluateConfig
    sets: tuple[EvalSet, ...]
    save: SaveConfig
    until: Mapping[str, float]
    export: ExportConfig = field(default_factory=ExportConfig)
    in_flight: InFlight = "drain"
    refresh_every: int | None = None
    trains: bool = True
    saved: SavedGroups | None = None
    temperature: ByStep | None = None
    scheduled: Mapping[str, ByStep] = field(default_factory=dict[str, ByStep])

    @property
    def evaluates_beside(self) -> bool:
        """Whether training goes on during evaluations; not where it may end with one."""
        return self.evaluate.engines > 0 and not self.until

    def item_of(self, draw: int) -> int:
        """The place of the prompt that ``draw`` takes in this order, before anything came of any draw."""
        return self.open_order().item(draw)

    def prompt_of(self, draw: int) -> Prompt:
        """That prompt."""
        return self.prompts[self.item_of(draw)]

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether every metric that ``until`` names has its value."""
        return bool(self.until) and all(metrics.get(name, float("-inf")) >= value for name, value in self.until.items())

    def begin(self, backend: TrainBackend) -> None:
        """Make the Models of this phase start from the policy as it is now (a teacher keeps its weights), with fresh
        optimizers."""
        for model, roles in sorted(models_of(self.graph).items()):
            if model not in OWN_WEIGHTS:
                backend.copy("policy", model)
            if "train" in roles:
                backend.reset_optimizer(model)

    def end_step(self, backend: TrainBackend, step: int) -> None:
        """What follows step ``step`` (from 0): every ``refresh_every`` steps the reference becomes the policy."""
        due = self.refresh_every is not None and (step + 1) % self.refresh_every == 0
        if due and "reference" in models_of(self.graph):
            backend.copy("policy", "reference")


def main_phase(
    recipe: Recipe,
    graph: Graph,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    sets: tuple[EvalSet, ...] = (),
    filter: Filter | None = None,
) -> Phase:
    """The phase that ``steps`` and ``epochs`` count. Raises DataError for prompts that its order cannot have."""
    schedule, backend = recipe.schedule, recipe.backend
    extent = draws_of(recipe.steps, recipe.epochs, schedule.groups_per_step, len(prompts))

    def lr(model: str, step: int) -> float:
        peak = value_at(recipe.critic.lr if model == "critic" else backend.lr, step)
        if not isinstance(backend, TorchBackendConfig):
            return peak
        return lr_at(step, steps=extent.steps, peak=peak, warmup=backend.lr_warmup, decay=backend.lr_decay)

    return Phase(
        name="main",
        graph=graph,
        steps=extent.steps,
        pool=PoolConfig(
            groups_per_step=schedule.groups_per_step,
            max_staleness=schedule.most_staleness,
            staleness=_by_step(schedule.max_staleness),
            deterministic=schedule.deterministic,
            max_refills=schedule.max_refills,
            steps=extent.steps,
            total_draws=None if recipe.epochs is None else recipe.epochs * len(prompts),
            over_sample=schedule.over_sample,
            rest=schedule.rest,
        ),
        namespace="train",
        sampling=sampling,
        prompts=prompts,
        order=recipe.order,
        open_order=order_maker(recipe.order, prompts, recipe.seed, "train"),
        filter=filter or Filter(),
        lr=lr,
        evaluate=recipe.evaluate,
        sets=sets,
        save=recipe.save,
        until={},
        export=recipe.export,
        in_flight=schedule.in_flight,
        refresh_every=getattr(recipe.algorithm, "reference_every", None),
        trains=recipe.debug.train,
        temperature=_by_step(recipe.sampling.temperature),
        scheduled=dict(scheduled(recipe)),
    )


def with_saved(phase: Phase, saved: SavedGroups) -> Phase:
    """The same phase, whose groups are taken from a record. Raises ConfigError if they cannot be what it draws."""
    groups_per_step, most = phase.pool.groups_per_step, phase.pool.total_draws
    draws = phase.steps * groups_per_step if most is None else min(most, phase.steps * groups_per_step)
    # An order by success knows its prompts as it goes, and they are looked at then.
    prompt_of = None if phase.order.type == "success" else phase.prompt_of
    check_saved(saved, prompt_of, draws, groups_per_step)
    return replace(phase, saved=saved)


def warmup_phase(
    recipe: Recipe, graph: Graph, prompts: Sequence[Prompt], sampling: Sampling, sets: tuple[EvalSet, ...] = ()
) -> Phase:
    """The phase before: on-policy, at a constant learning rate, until its metrics are reached."""
    warmup = recipe.warmup
    assert warmup is not None, "a recipe without warm-up has no such phase"
    return Phase(
        name="warmup",
        graph=graph,
        steps=warmup.max_steps,
        pool=PoolConfig(
            groups_per_step=warmup.groups_per_step,
            max_staleness=0,
            deterministic=recipe.schedule.deterministic,
            max_refills=recipe.schedule.max_refills,
            steps=warmup.max_steps,
            total_draws=None,
        ),
        namespace="warmup",
        sampling=sampling,
        prompts=prompts,
        order=ShuffledOrder(),
        open_order=order_maker(ShuffledOrder(), prompts, recipe.seed, "warmup"),
        filter=Filter(),
        lr=lambda model, step: warmup.lr,
        evaluate=warmup.evaluate,
        sets=sets,
        save=recipe.save,
        until=warmup.until,
    )


def _by_step(value: float | ByStep) -> ByStep | None:
    return value if isinstance(value, ByStep) else None
