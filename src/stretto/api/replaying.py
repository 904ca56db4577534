"""What debugging and bisecting share: a step of a run, the job that made it, and what came of making it again."""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stretto.api.runs import as_given, check_given, recipe_of
from stretto.config.debugging import DebugConfig
from stretto.config.recipe import Recipe
from stretto.environments.rewards import Reward
from stretto.errors import ConfigError
from stretto.graph import Graph
from stretto.runtime.build import Given, Job, prepare
from stretto.runtime.graphs import main_graph, warmup_graph
from stretto.runtime.phases import Phase
from stretto.runtime.replay import Past, Start
from stretto.store import PHASES, Difference, RunView, SettingBody, StepBody
from stretto.types import Prompt, Trajectory

__all__ = ["Breakpoints", "Debugged", "NodeRow", "Place", "began", "job_of", "workflow_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node of a step: how often it ran, for how long in all, what it gave. ``recorded``: in the run, not now."""

    id: str
    use: str
    runs: int
    seconds: float
    gave: str
    recorded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Debugged:
    """A step that was made again, or a node of it.

    ``began``: from where. ``values`` by node: what its edges carried. ``compared`` numbers (or parts of a group) were
    held against the record, and ``differing`` are not the same to the bit (``a`` recorded, ``b`` now). ``notes``: what
    else was met.
    """

    run: str
    phase: str
    step: int
    deterministic: bool
    began: str
    nodes: tuple[NodeRow, ...]
    values: Mapping[str, object]
    node: str | None = None
    draw: int | None = None
    compared: int = 0
    differing: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A step of a run, with what is needed to make it again."""

    view: RunView
    job: Job
    past: Past
    index: int
    step: int

    @property
    def phase(self) -> Phase:
        """Its phase."""
        return self.job.phases[self.index]

    @property
    def graph(self) -> Graph:
        """The workflow of its phase."""
        return self.phase.graph


def job_of(view: RunView, phase: str, step: int, given: Given, call: str, *, judges: bool = False) -> Job:
    """The job of a run as it was when it made a step; ``judges``: a per-group node of it is run.

    Raises ResumeError for Python objects that are not ``given`` again; ``call`` begins the remedy. A reward is one of
    them only if it judges. Raises ConfigError for a step of a phase that trained nothing.
    """
    made_by = [e.attempt for e in view.events if isinstance(e.body, StepBody) and (e.phase, e.step) == (phase, step)]
    recipe = _recipe(view, made_by[-1] if made_by else None)
    if phase == "main" and not recipe.debug.train and not judges:
        raise ConfigError(
            f"run {view.name!r} trained nothing in its main phase (debug.train=false), so it has no step to make "
            f"again. Train on what it sampled with debug.rollouts_from={view.name}, and debug that run."
        )
    recipe = recipe.model_copy(update={"debug": DebugConfig(train=recipe.debug.train)})
    if not judges and given.reward is None:
        given = replace(given, reward=_unasked_rewards(recipe))
    check_given(view.name, recipe, given, call)
    return prepare(recipe, given)


def workflow_of(view: RunView, phase: str, given: Given, call: str) -> Graph:
    """The workflow of a phase of a run. Raises ConfigError if it has no such phase, ResumeError as ``job_of``."""
    recipe = _recipe(view, None)
    phases = [name for name in PHASES if name == "main" or recipe.warmup is not None]
    if phase not in phases:
        raise ConfigError(f"run {view.name!r} has no phase {phase!r}. Its phases: {', '.join(phases)}.")
    if phase == "main" and given.workflow is None and (recipe.workflow or "").startswith("python:"):
        check_given(view.name, recipe, given, call)
    return main_graph(recipe, given.workflow) if phase == "main" else warmup_graph(recipe)


def _recipe(view: RunView, attempt: int | None) -> Recipe:
    """The recipe of a run up to an attempt, in which what was given counts as given."""
    changed = {e.body.key for e in view.all_events if isinstance(e.body, SettingBody)}
    return as_given(recipe_of(view, attempt), {*view.info.given, *changed})


def _unasked_rewards(recipe: Recipe) -> "Reward | Mapping[str, Reward] | None":
    """What stands in for rewards that only Python knew, where nothing is judged."""
    parts, use = recipe.reward.parts, recipe.reward.use
    if parts is not None:
        return {name: _unasked for name, part in parts.items() if part.use.startswith("python:")} or None
    return _unasked if (use or "").startswith("python:") else None


def _unasked(prompt: Prompt, trajectory: Trajectory) -> float:
    """A reward that nobody may ask."""
    raise AssertionError("nothing is judged while recorded steps are made again")


def began(start: Start, index: int, step: int) -> str:
    """From where, and how many steps were made again on the way to ``step``."""
    between = step - (start.at.steps_done if start.at.phase_index == index else 0)
    way = f", {between} step{'' if between == 1 else 's'} of its phase made again on the way" if between else ""
    return f"{start}{way}"


class Breakpoints:
    """``breakpoint()`` does nothing inside, but where it is ``opened``."""

    def __enter__(self) -> "Breakpoints":
        self._hook = sys.breakpointhook
        sys.breakpointhook = _pass_by
        return self

    def __exit__(self, *_: object) -> None:
        sys.breakpointhook = self._hook

    @contextmanager
    def opened(self, really: bool) -> Generator[None]:
        """It does what it did before, if ``really``."""
        sys.breakpointhook = self._hook if really else _pass_by
        try:
            yield
        finally:
            sys.breakpointhook = _pass_by


def _pass_by(*_: object, **__: object) -> None:
    """A breakpoint that is passed by."""
