"""Opens what a prepared job names: rewards, environments, Models, engines. The one place where classes of floor 3 are
chosen.

Everything is owned by the Disposer that is passed in, at the line that opens it. What needs no device is ``build``'s.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.backends import FakeBackendConfig
from stretto.config.recipe import Recipe
from stretto.config.rewards import RewardConfig
from stretto.config.rollouts import FakeEngineConfig
from stretto.data.locations import folder_of, is_hub_id, locate
from stretto.environments.episodes import Episodes
from stretto.environments.judge import RewardJudge
from stretto.environments.rewards import Rewards
from stretto.errors import ConfigError
from stretto.imports import importing_much
from stretto.plane.local import LocalPlane
from stretto.roles import DataPlane, RolloutEngine, TrainBackend, TurnBudget
from stretto.runtime.binding import GroupJudge
from stretto.runtime.build import Job, evaluation_engines, max_len_of, needed_models, prefix_tokens_of
from stretto.runtime.colocation import Colocation
from stretto.runtime.disposer import Disposer
from stretto.runtime.eval_sets import own_rewards
from stretto.runtime.fleet import Fleet
from stretto.runtime.graphs import VALUE_HEADS
from stretto.runtime.learning import Learners, LocalLearners
from stretto.runtime.parts import Here, LocalPublication, Parts
from stretto.runtime.roller import Keep, Roller
from stretto.runtime.threads import threads_of
from stretto.runtime.worker import Worker
from stretto.testing import FakeBackend, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.backends.torch.lora import BaseOrigin
    from stretto.backends.torch.ranks import Ranks

__all__ = ["Judging", "open_backend", "open_engine", "open_judging", "open_model", "open_parts", "roller_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judging:
    """What judges, and what is played against. ``judges``: those of evaluation sets by key, the recipe's as ""."""

    judges: "Mapping[str, GroupJudge]"
    episodes: Episodes | None


async def open_parts(job: Job, disposer: Disposer, *, trains: bool = True) -> Parts:
    """Everything of a run in this process, up to the Models. The first publication is the driver's.
    Without ``trains`` there is nothing that evaluations could run beside."""
    recipe = job.recipe
    with importing_much():  # torch takes seconds to import: only what trains or evaluates pays
        from stretto.weights.in_process import InProcessSync

    judging = await open_judging(job, disposer)
    plane = LocalPlane()
    worker = Worker(job.phases, plane)
    disposer.own("the learner", worker, worker.close, deadline_s=60.0)
    await worker.open(lambda: open_backend(job))
    engine = open_engine(job)
    disposer.own("the engine", engine, engine.close)
    roller = roller_of(job, judging, engine, plane)
    evaluators: list[Fleet] = []
    for number in range(evaluation_engines(recipe) if trains else 0):
        own = open_engine(job)
        disposer.own(f"the evaluations' engine {number}", own, own.close)
        fleet = Fleet([replace(roller, engine=own)])
        evaluators.append(disposer.own(f"the evaluations' fleet {number}", fleet, fleet.close))
    rollers, learners = Fleet([roller]), LocalLearners(worker)
    disposer.own("the fleet", rollers, rollers.close)
    return Parts(
        rollers=rollers,
        learners=learners,
        publication=LocalPublication(worker=worker, sync=InProcessSync(worker.call)),
        plane=plane,
        colocation=_open_colocation(recipe, rollers, learners),
        tokenizer=job.tokenizer,
        precision=getattr(recipe.engine, "dtype", "float32"),
        deterministic=recipe.schedule.deterministic,
        evaluators=tuple(evaluators),
        here=Here(roller=roller, worker=worker),
    )


async def open_judging(job: Job, disposer: Disposer) -> Judging:
    """Start the processes of rewards and environments."""
    recipe = job.recipe
    judges: dict[str, GroupJudge] = {"": await _open_judge(job, recipe.reward, job.rewards, disposer)}
    for key, config in own_rewards(recipe).items():
        judges[key] = await _open_judge(job, config, job.set_rewards[key], disposer)
    episodes: Episodes | None = None
    if (e := recipe.environment) is not None:
        episodes = Episodes(e, job.environment, deterministic=recipe.schedule.deterministic)
        disposer.own("the environment processes", episodes, episodes.close, pids=lambda: episodes.pids)
        await episodes.start()
    return Judging(judges=judges, episodes=episodes)


def roller_of(
    job: Job, judging: Judging, engine: RolloutEngine, plane: DataPlane, *, keep: Keep | None = None, name: str = ""
) -> Roller:
    """What runs the per-group part of the job's graphs on ``engine``."""
    recipe = job.recipe
    return Roller(
        engine=engine,
        judges=judging.judges,
        tokenizer=job.tokenizer,
        seed=recipe.seed,
        deadline_s=recipe.sampling.deadline_s,
        plane=plane,
        phases=job.phases,
        episodes=judging.episodes,
        budget=_budget(recipe),
        keep=keep,
        name=name,
    )


def open_backend(job: Job, ranks: "Ranks | None" = None) -> TrainBackend:
    """The Models of a job, in the thread that will use them: it gets its number of threads here. ``ranks``: those among
    which they are cut."""
    recipe, models = job.recipe, needed_models(job.graphs)
    if isinstance(recipe.backend, FakeBackendConfig):
        return FakeBackend(sorted(models), step_s=recipe.backend.step_s)
    with importing_much():
        from stretto.backends.torch.backend import ModelSpec, TorchBackend, set_threads

    set_threads(threads_of(recipe) or 1)
    specs = {
        model: ModelSpec(
            path=job.model,
            trainable="train" in roles,
            value_head=model in VALUE_HEADS,
            lora=recipe.model.lora,
            origin=_origin(recipe, job.model),
        )
        for model, roles in sorted(models.items())
    }
    if job.teacher is not None:
        specs["teacher"] = ModelSpec(path=job.teacher, trainable=False, fixed=True)
    return TorchBackend(specs, recipe.backend, recipe.seed, offload_to=recipe.offload.to, ranks=ranks)


def open_model(recipe: Recipe, model: str = "policy") -> TrainBackend:
    """A backend that holds one Model and does not train it: what an export loads a checkpoint into."""
    if isinstance(recipe.backend, FakeBackendConfig):
        raise ConfigError("backend.type=fake holds no Model, so there are no weights. Train with backend.type=torch.")
    from stretto.backends.torch.backend import ModelSpec, TorchBackend, set_threads

    set_threads(threads_of(recipe) or 1)
    path = locate(recipe.model.path, recipe.model.revision).path
    spec = ModelSpec(
        path=path,
        trainable=False,
        value_head=model in VALUE_HEADS,
        lora=recipe.model.lora,
        origin=_origin(recipe, path),
    )
    return TorchBackend({model: spec}, recipe.backend.model_copy(update={"device": "cpu"}), recipe.seed)


def open_engine(job: Job) -> RolloutEngine:
    """The engine that the recipe names."""
    recipe = job.recipe
    if isinstance(recipe.engine, FakeEngineConfig):
        e = recipe.engine
        return FakeEngine(delay_s=e.delay_s, spread=e.spread, slots=e.slots)
    from stretto.engines.native import NativeEngine

    e = recipe.engine
    return NativeEngine(
        load_hf_config(job.model),
        slots=e.slots,
        max_len=max_len_of(job),
        dtype=e.dtype,
        device=e.device,
        threads=e.threads,
        decode=job.tokenizer.decode,
        forward=e.forward,
        head_dtype=e.head_dtype,
        batch_invariant=e.batch_invariant,
        prefix_tokens=prefix_tokens_of(job),
    )


def _open_colocation(recipe: Recipe, rollers: Fleet, learners: Learners) -> Colocation:
    """Peaks are those of the device that engine and trainer share."""
    if not getattr(recipe.backend, "device", "cpu").startswith("cuda"):
        return Colocation(rollers, learners, recipe.offload)
    import torch

    cuda = torch.cuda
    return Colocation(
        rollers, learners, recipe.offload, peak=cuda.max_memory_allocated, reset=cuda.reset_peak_memory_stats
    )


def _budget(recipe: Recipe) -> TurnBudget | None:
    e = recipe.environment
    if e is None:
        return None
    return TurnBudget(max_turns=e.max_turns, max_total_tokens=e.max_total_tokens, on_length=e.on_length)


async def _open_judge(job: Job, config: RewardConfig, rewards: Rewards, disposer: Disposer) -> RewardJudge:
    judge = RewardJudge(config, rewards, deterministic=job.recipe.schedule.deterministic)
    disposer.own("the reward processes", judge, judge.close, pids=lambda: judge.pids)
    await judge.start()
    return judge


def _origin(recipe: Recipe, path: str) -> "BaseOrigin | None":
    """How exported adapters name the model in ``path``: a hub id, or the folder wherever they are loaded from."""
    if recipe.model.lora is None:
        return None
    from stretto.backends.torch.lora import BaseOrigin  # loads torch

    if is_hub_id(recipe.model.path):
        return BaseOrigin(name=recipe.model.path, revision=recipe.model.revision)
    folder = folder_of(path)
    return BaseOrigin(name=path if folder is None else str(folder.resolve()))
