"""``stretto check``: a recipe resolved as far as it goes without computing, and the plan that follows from it."""

import psutil

from stretto.config.algorithms import PolicyGradient
from stretto.config.algorithms.presets import VERSIONS, convention_of, defects_of
from stretto.config.backends import FakeBackendConfig
from stretto.config.by_step import told
from stretto.config.recipe import Recipe
from stretto.config.rollouts import FakeEngineConfig
from stretto.families.shapes import facts_of
from stretto.graph.settings import brief
from stretto.plan import BYTES, DeviceFacts, ModelFacts, Usage, check_plan, make_plan, render_plan
from stretto.runtime.build import Given, Job, evaluation_engines, max_len_of, needed_models, prefix_tokens_of, prepare
from stretto.runtime.graphs import VALUE_HEADS
from stretto.runtime.threads import told_threads
from stretto.runtime.unread import refuse_unread

__all__ = ["check"]


def check(recipe: Recipe) -> str:
    """What a run of ``recipe`` would be: prompts, phases, who sits where, memory needed against what is there.

    Raises UserError for anything that would refuse the run, memory included (ConfigError with the numbers).
    """
    job = prepare(recipe, Given())
    refuse_unread(recipe, job.graphs)
    lines = [
        f"model {recipe.model.path}, reward {recipe.reward.use or job.rewards.name}",
        *job.read.lines,
        f"longest prompt with completion {job.longest} tokens",
    ]
    for phase in job.phases:
        draws = phase.pool.groups_per_step * phase.steps
        how = "" if phase.in_flight == "drain" else f", in_flight {phase.in_flight}"
        if phase.pool.over_sample is not None:
            how += f", over_sample {phase.pool.over_sample:g} ({phase.pool.rest} the rest)"
        lines.append(
            f"phase {phase.name}: workflow {phase.graph.name}, {phase.steps:,} steps of {phase.pool.groups_per_step} "
            f"groups ({draws / len(job.train):.1f} passes over the prompts), "
            f"max_staleness {phase.pool.max_staleness}{how}"
        )
        lines += [f"  {key} by step: {told(value)}" for key, value in phase.scheduled.items()]
    lines += _place_lines(recipe)
    lines += _debug_lines(recipe) + told_threads(recipe)
    lines += _preset_lines(recipe)
    adapters = _adapter_parameters(recipe, job)
    if adapters is not None:
        lines.append(f"adapters: {adapters:,} parameters a trained Model (model.lora), over a base that stays as it is")
    return "\n".join([*lines, "", _plan_text(recipe, job, adapters)])


def _place_lines(recipe: Recipe) -> list[str]:
    """Who gives up memory, and where evaluations run, if that is not as usual."""
    offload, lines = recipe.offload, list[str]()
    gives = [f"{offload.engine} of the engine while training"] if offload.engine != "none" else []
    if offload.trainer != "none":
        gives.append(f"{offload.trainer} of the trainer while sampling (to {offload.to})")
    if gives:
        lines.append(f"offload gives up: {', '.join(gives)}; the memory below is with both awake")
    if recipe.evaluate.engines:
        count = recipe.evaluate.engines
        lines.append(f"evaluations: beside training, on {count} engine{'s' if count > 1 else ''} of their own")
    return lines


def _debug_lines(recipe: Recipe) -> list[str]:
    """Which half of the main phase does not run."""
    if not recipe.debug.train:
        return ["phase main samples and records groups, and trains nothing (debug.train=false)"]
    source = recipe.debug.rollouts_from
    return [f"phase main trains on the groups of run {source}, and samples none"] if source is not None else []


def _preset_lines(recipe: Recipe) -> list[str]:
    """What the algorithm's preset changes, and the defects that it keeps."""
    algorithm = recipe.algorithm
    if not isinstance(algorithm, PolicyGradient) or algorithm.preset is None:
        return []
    preset, followed = algorithm.preset, algorithm.followed
    shown = ", ".join(f"{key}={brief(value) or 'null'}" for key, value in followed.items()) or "nothing differs"
    missing = convention_of(preset, algorithm.type).not_here
    notes = [f"a defect that is kept: {text}" for text in defects_of(followed)] + [
        f"not reproduced: {t}" for t in missing
    ]
    return [f"preset {preset} ({VERSIONS[preset]}): {shown}", *(f"  {note}" for note in notes)]


def _adapter_parameters(recipe: Recipe, job: Job) -> int | None:
    """Parameters of a set of low-rank adapters; None without."""
    if recipe.model.lora is None or isinstance(recipe.backend, FakeBackendConfig):
        return None
    from stretto.backends.torch.hf_config import load_hf_config
    from stretto.backends.torch.lora import count_adapters  # loads torch

    return count_adapters(load_hf_config(job.model), recipe.model.lora)


def _plan_text(recipe: Recipe, job: Job, adapters: int | None) -> str:
    engine, backend = recipe.engine, recipe.backend
    if isinstance(engine, FakeEngineConfig) or isinstance(backend, FakeBackendConfig):
        return "no plan: engine or backend is fake, and holds no Model\n"
    roles = needed_models(job.graphs)
    plan = make_plan(
        models={name: _facts(job.teacher if name == "teacher" else job.model, name) for name in sorted(roles)},
        roles=roles,
        program=[spec.id for spec in job.phases[-1].graph.step_nodes],
        device=DeviceFacts(name=backend.device, memory_bytes=psutil.virtual_memory().available),
        usage=Usage(
            slots=engine.slots,
            max_len=max_len_of(job),
            backend=backend,
            engine_bytes=BYTES[engine.dtype],
            head_bytes=BYTES[engine.head_dtype or engine.dtype],
            prefix_tokens=prefix_tokens_of(job),
            engines=1 + evaluation_engines(recipe),
            adapter_parameters=adapters,
        ),
    )
    check_plan(plan)
    return render_plan(plan)


def _facts(path: str | None, model: str) -> ModelFacts:
    """What the plan needs to know of a Model that is made from ``path``."""
    from stretto.backends.torch.hf_config import load_hf_config

    assert path is not None
    return facts_of(load_hf_config(path), value_head=model in VALUE_HEADS)
