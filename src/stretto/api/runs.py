"""Starting, resuming and evaluating runs: from a recipe to a finished record. The command line and ``stretto.train``
are thin layers over these functions."""

import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from stretto.api.host import host
from stretto.config.backends import TorchBackendConfig
from stretto.config.base import Section
from stretto.config.evaluation import EvaluateConfig
from stretto.config.filters import FilterConfig
from stretto.config.load import recipe_from_mapping
from stretto.config.overrides import apply_overrides, apply_resume_overrides, parse_overrides
from stretto.config.prompts import PythonPrompts
from stretto.config.recipe import Recipe
from stretto.config.rewards import RewardConfig
from stretto.config.sections import RayCluster
from stretto.data.locations import BUILTIN_PREFIX, is_hub_id
from stretto.errors import ConfigError, ResumeError, WorkerLost
from stretto.runtime.attempt import attempt, evaluate_only
from stretto.runtime.build import Given, Job, prepare
from stretto.runtime.checkpoint import position_after
from stretto.runtime.evaluation import EvalResult
from stretto.runtime.threads import threads_of
from stretto.runtime.unread import refuse_unread
from stretto.store import Checkpoint, ErrorBody, Event, RunSpec, RunStore, RunView, SettingBody, find_run, word_for
from stretto.waiting import unless_stopped

__all__ = ["as_given", "check_given", "evaluate", "given_keys", "recipe_of", "resume", "start"]

Observer = Callable[[Event], None]

GIVEN = ("algorithm", "sampling")
"""The sections whose keys fill a workflow's parameters by name."""

EVALUATION_KEYS = (
    "prompts",
    "reward",
    "environment",
    *(f"evaluate.{key}" for key in EvaluateConfig.model_fields if key not in ("every", "at_start", "at_end")),
    "sampling.max_tokens",
    "sampling.stop",
    "sampling.deadline_s",
    "engine",
)
"""What an evaluation reads, whole sections included."""

IMPORTABLE = {
    "reward": "reward.use=MODULE:FUNCTION",
    "prompts": "prompts.type=jsonl prompts.path=FILE",
    "environment": "environment.use=MODULE:CLASS",
}
"""How what lived only in Python is named instead."""


def start(
    recipe: Recipe, *, hint: str = "run", given: Given | None = None, observer: Observer | None = None
) -> RunView:
    """Start a new run and see it to its end. Its record is kept in ``recipe.runs_dir``.

    Raises UserError before anything is started if the recipe cannot work, RunError if the run failed, Interrupted if a
    signal stopped it; whatever was finished is saved.
    """
    if isinstance(recipe.backend, TorchBackendConfig):
        backend = recipe.backend.model_copy(update={"threads": threads_of(recipe)})
        recipe = recipe.model_copy(update={"backend": backend})
    job = prepare(recipe, given or Given())
    refuse_unread(recipe, job.graphs)
    return _drive(job, RunStore.create(Path(recipe.runs_dir), _spec(job.recipe, hint)), observer)


def resume(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    fork: str | None = None,
    given: Given | None = None,
    observer: Observer | None = None,
) -> RunView:
    """Go on with the run at ``path`` from its newest whole checkpoint, to the same bits as if it had never stopped.

    Only keys that cannot change what is learned may be overridden, unless ``fork`` names a new run to go on as. Raises
    ResumeError if there is nothing to do, or if the run was made with Python objects that are not ``given`` again.
    """
    view = RunView(path)
    recipe = recipe_of(view)
    if fork is None:
        recipe, changes = apply_resume_overrides(recipe, overrides)
    else:
        recipe, changes = apply_overrides(recipe, [*overrides, f"name={fork}"])
        if any(change.key == "algorithm.preset" for change in changes):
            raise ConfigError(
                "a fork keeps the settings of its run, which are all written down, and algorithm.preset is about those "
                "that are not set. Set the fields that are to change: `stretto algorithms show NAME` lists them."
            )
    recipe = as_given(recipe, {*view.info.given, *(change.key for change in changes)})
    check_given(view.name, recipe, given or Given(), f"Go on with it from Python: stretto.resume({view.name!r}, ")
    job = prepare(recipe, given or Given())
    if view.status == "done" and view.steps >= job.phases[-1].steps:
        asked = any(text.startswith(("steps=", "epochs=")) for text in overrides)
        why = f", and the {job.phases[-1].steps} asked for are not more" if asked else ""
        raise ResumeError(
            f"run {view.name!r} is done: it has all of its {view.steps} steps{why}. Give it more with "
            f"`stretto resume {word_for(path)} steps={2 * view.steps}`, or start another with `stretto train`."
        )
    if fork is not None:
        return _drive(job, _fork(view, recipe, job), observer)
    settings = [SettingBody(key=change.key, old=change.old, new=change.new) for change in changes]
    return _drive(job, RunStore.open(path, lambda checkpoint: position_after(checkpoint, job)), observer, settings)


def evaluate(target: str, overrides: Sequence[str] = (), *, runs_dir: Path = Path("runs")) -> dict[str, EvalResult]:
    """Evaluate a run's newest checkpoint, or a model (a folder, ``builtin:NAME`` or a hub id), on every set of its
    recipe.

    The results are by the sets' names, ``held_out`` first if there is that share. A run is looked for in ``runs_dir``.
    For a model, the prompts and reward are those of a recipe's defaults (``prompts.type=... prompts.path=...``), and
    ``seed`` chooses what is held out (``prompts.held_out=1``: all). Raises ConfigError for a key that an evaluation
    does not read.
    """
    if _is_model(target):
        recipe = recipe_from_mapping({"steps": 1, "model": {"path": target}}, overrides)
        _refuse_unevaluated(overrides, (*EVALUATION_KEYS, "seed", "model.revision"))
        return _evaluate(recipe, None)
    view = RunView(find_run(runs_dir, target))
    recipe, _ = apply_overrides(recipe_of(view), overrides)
    _refuse_unevaluated(overrides, EVALUATION_KEYS)
    recipe = as_given(recipe, set(view.info.given)).model_copy(update={"filter": FilterConfig()})
    _check_importable(view, recipe)
    checkpoint = view.checkpoint().taken
    if checkpoint is None:
        raise ResumeError(f"run {view.name!r} has no whole checkpoint to evaluate. Resume it until it has saved one.")
    return _evaluate(recipe, checkpoint)


def _evaluate(recipe: Recipe, checkpoint: Checkpoint | None) -> dict[str, EvalResult]:
    told = "the evaluation was stopped. There is nothing to keep of it; start it again."
    job = prepare(recipe, Given(), trains=False)
    return host(lambda stop: unless_stopped(evaluate_only(job, checkpoint), stop, told))


def _is_model(target: str) -> bool:
    """Whether it names a model. What lies in a folder that is here (``runs/NAME``) is no hub id."""
    on_hub = is_hub_id(target) and not Path(target).parent.is_dir()
    return target.startswith(BUILTIN_PREFIX) or on_hub or (Path(target) / "config.json").is_file()


def recipe_of(view: RunView, attempt: int | None = None) -> Recipe:
    """The recipe that a run was started with, with the settings that later attempts changed (up to ``attempt``)."""
    recipe = recipe_from_mapping(view.info.config)
    last = math.inf if attempt is None else attempt
    settings = [e for e in view.all_events if e.attempt <= last]
    changed = {e.body.key: e.body.new for e in settings if isinstance(e.body, SettingBody)}
    if changed:
        recipe, _ = apply_overrides(recipe, [f"{key}={json.dumps(new)}" for key, new in changed.items()])
    return recipe


def given_keys(recipe: Recipe) -> tuple[str, ...]:
    """The keys of ``algorithm`` and ``sampling`` that were given and are not defaults: a workflow must read them."""
    return tuple(f"{name}.{key}" for name in GIVEN for key in sorted(getattr(recipe, name).model_fields_set))


def as_given(recipe: Recipe, given: Collection[str]) -> Recipe:
    """``recipe`` in which only the keys in ``given`` count as given, as when its run was started."""
    update: dict[str, Section] = {}
    for name in GIVEN:
        section: Section = getattr(recipe, name)
        values = {key: getattr(section, key) for key in type(section).model_fields}
        fields_set = {key for key in values if f"{name}.{key}" in given}
        update[name] = type(section).model_construct(_fields_set=fields_set, **values)
    return recipe.model_copy(update=update)


def _python_only(recipe: Recipe) -> list[str]:
    """Which of workflow, reward, environment, filter and prompts exist only in the Python that made the run."""
    lives = {
        "workflow": (recipe.workflow or "").startswith("python:"),
        "reward": any(use.startswith("python:") for use in _uses(recipe.reward)),
        "environment": recipe.environment is not None and recipe.environment.use.startswith("python:"),
        "filter": (recipe.filter.use or "").startswith("python:"),
        "prompts": isinstance(recipe.prompts, PythonPrompts) and recipe.prompts.use is None,
    }
    return [key for key, only in lives.items() if only]


def _uses(reward: RewardConfig) -> list[str]:
    """What the reward section names: one reward, or those of its parts."""
    return [part.use for part in reward.parts.values()] if reward.parts is not None else [reward.use or ""]


def check_given(name: str, recipe: Recipe, given: Given, call: str) -> None:
    """A run made with Python objects goes on only with them. ``call``: how the sentence with the remedy begins, up to
    where they are passed."""
    missing = [key for key in _python_only(recipe) if getattr(given, key) is None]
    if missing:
        objects = ", ".join(f"{key}=..." for key in missing)
        raise ResumeError(
            f"run {name!r} was made with Python objects that cannot be imported by name ({', '.join(missing)}). "
            f"{call}{objects})."
        )


def _check_importable(view: RunView, recipe: Recipe) -> None:
    """An evaluation takes no Python objects: what it needs is imported by name."""
    missing = _python_only(recipe)
    if not missing:
        return
    run = word_for(view.path)
    if "workflow" in missing:  # a run's checkpoint is read by its workflow; its exported policy needs none
        run = word_for(view.path / "model")
    keys = " ".join(key for name, key in IMPORTABLE.items() if name in missing)
    raise ConfigError(
        f"run {view.name!r} was made with Python objects ({', '.join(missing)}), and can only be evaluated with what "
        f"can be imported by name: `{' '.join(['stretto eval', run, *([keys] if keys else [])])}`."
    )


def _refuse_unevaluated(overrides: Sequence[str], read: Collection[str]) -> None:
    """An evaluation reads some keys only; the others would be set for nothing."""
    keys = [override.key for override in parse_overrides(overrides)]
    unread = [key for key in keys if not any(key == known or key.startswith(f"{known}.") for known in read)]
    if unread:
        raise ConfigError(
            f"an evaluation does not read {', '.join(unread)}. Leave that out; it takes keys of {', '.join(read)}."
        )


def _fork(view: RunView, recipe: Recipe, job: Job) -> RunStore:
    """A new run that begins at the newest checkpoint of another."""
    taken = view.checkpoint().taken
    if taken is None:
        raise ResumeError(f"run {view.name!r} has no whole checkpoint to fork from. Start a new run instead.")
    position_after(taken, job)
    return RunStore.create(Path(recipe.runs_dir), _spec(recipe, view.name, parent=view.name, begin=taken))


def _spec(recipe: Recipe, hint: str, *, parent: str | None = None, begin: Checkpoint | None = None) -> RunSpec:
    return RunSpec(
        hint=hint,
        config=recipe.model_dump(mode="json"),
        given=given_keys(recipe),
        seed=recipe.seed,
        steps=recipe.steps,
        name=recipe.name,
        parent=parent,
        begin=begin,
        threads=threads_of(recipe),
    )


def _drive(job: Job, store: RunStore, observer: Observer | None, settings: Sequence[SettingBody] = ()) -> RunView:
    """See the run to its end, then read what was recorded. What a resume changed is said, and what it passed over, as
    an error event. After a worker was lost it goes on by itself, from the newest checkpoint, as often as the cluster's
    ``restarts`` allow."""
    left = job.recipe.cluster.restarts if isinstance(job.recipe.cluster, RayCluster) else 0
    again: RunStore | None = store
    while again is not None:
        with again:
            lost = _attempt(job, again, observer, settings)
        if lost is not None and not left:
            raise lost
        left, settings = left - 1, ()
        again = None if lost is None else RunStore.open(store.path, lambda checkpoint: position_after(checkpoint, job))
    return RunView(store.path)


def _attempt(
    job: Job, store: RunStore, observer: Observer | None, settings: Sequence[SettingBody]
) -> WorkerLost | None:
    """One attempt; that a worker was lost in it is given, anything else is raised."""
    for setting in settings:
        store.event(setting)
    if observer is not None:
        for event in RunView(store.path).all_events:
            if event.attempt == store.attempt:
                observer(event)
        store.subscribe(observer)
    for skipped in store.found.skipped:
        message = f"checkpoint {skipped.path.name} was passed over: {skipped.reason}"
        store.event(ErrorBody(type="StoreError", message=message, where="resume"))
    store.event(job.read)
    try:
        host(lambda stop: attempt(job, store, stop))
    except WorkerLost as lost:
        return lost
    return None
