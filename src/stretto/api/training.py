"""``stretto.train``: a run from Python, with the caller's own workflow, prompts and reward."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from stretto.api.runs import resume as resume_run
from stretto.api.runs import start
from stretto.config.load import recipe_from_mapping
from stretto.environments.rewards import Reward
from stretto.graph import Workflow
from stretto.runtime.build import Given
from stretto.store import Evaluation, Event, RunView, find_run
from stretto.types import Group, Prompt
from stretto.workflows.builtin import WORKFLOWS

__all__ = ["Run", "resume", "train"]

Observer = Callable[[Event], None]
Prompts = Iterable[str | Mapping[str, object] | Prompt] | Callable[[], Iterable[object]]


class Run:
    """A run and what came of it, read from its record."""

    def __init__(self, view: RunView) -> None:
        self.view = view

    def __repr__(self) -> str:
        return f"<run {self.name}: {self.view.status}, {self.view.steps} steps>"

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.view.name

    @property
    def path(self) -> Path:
        """Its folder; ``model/`` in it is the trained policy as a Hugging Face folder."""
        return self.view.path

    @property
    def evals(self) -> list[Evaluation]:
        """The evaluations of the main phase, in order."""
        return self.view.evaluations()

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        return self.view.metrics

    def history(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of a metric."""
        return self.view.history(metric)

    def samples(self) -> list[Group]:
        """Every group that was rolled out in the main phase, by draw."""
        return [recorded.group for recorded in self.view.groups()]


def train(
    workflow: str | Workflow = "grpo",
    *,
    prompts: Prompts | Mapping[str, object] | None = None,
    reward: Reward | str | Mapping[str, object] | None = None,
    model: str | Mapping[str, object] | None = None,
    held_out: float | None = None,
    observer: Observer | None = None,
    **sections: object,
) -> Run:
    """Train, and return the finished run.

    ``workflow``: a workflow of your own, or the name of a built-in one or of an algorithm. ``prompts``: strings, dicts
    with ``prompt`` and ``answer``, or Prompts (or a section). ``reward``: a function ``(prompt, trajectory) -> float``
    (or its name, or a section). ``model``: a folder or built-in name. ``held_out``: the share of the prompts that is
    kept for evaluation (of given ones none by default). Everything else is a section of a recipe or a key
    of it: ``steps=50, sampling={"n": 4}, schedule={"groups_per_step": 8}``. No ``__main__`` guard is needed.

    Example::

        def short(prompt, trajectory):
            return 1.0 - trajectory.num_written / 16

        run = stretto.train("grpo", prompts=["hello ", "world "], reward=short, steps=20)
        print(run.metrics["reward/mean"])

    Raises ConfigError, GraphError or DataError before anything starts, RunError if the run failed.
    """
    tree: dict[str, object] = {} if prompts is None else {"prompts": {"type": "python", "held_out": 0.0}}
    given = Given(
        workflow=workflow if isinstance(workflow, Workflow) else None,
        prompts=None if prompts is None or isinstance(prompts, Mapping) else prompts,
        reward=reward if callable(reward) else None,
    )
    if isinstance(workflow, Workflow):
        tree["workflow"] = workflow.use
    elif workflow in WORKFLOWS:
        tree["algorithm"] = {"type": workflow}
    else:
        tree["workflow"] = workflow
    if isinstance(prompts, Mapping):
        tree["prompts"] = dict(prompts)
    if held_out is not None:
        tree["prompts"] = _merged(tree.get("prompts", {}), {"held_out": held_out})
    if model is not None:
        tree["model"] = {"path": model} if isinstance(model, str) else model
    if reward is not None:
        tree["reward"] = _reward_section(reward)
    for name, value in sections.items():
        tree[name] = _merged(tree.get(name), value)
    recipe = recipe_from_mapping(tree)
    hint = workflow.name if isinstance(workflow, Workflow) else Path(workflow).stem.replace(":", "-")
    return Run(start(recipe, hint=hint, given=given, observer=observer))


def resume(
    run: str | Path,
    *,
    workflow: Workflow | None = None,
    prompts: Prompts | None = None,
    reward: Reward | None = None,
    overrides: Sequence[str] = (),
    runs_dir: str | Path = "runs",
    observer: Observer | None = None,
) -> Run:
    """Go on with a run that stopped; pass again the Python objects it was made with.

    ``overrides`` are keys that a resume may change, as on the command line: ``["steps=200"]``.
    """
    given = Given(workflow=workflow, prompts=prompts, reward=reward)
    return Run(resume_run(find_run(Path(runs_dir), str(run)), overrides, given=given, observer=observer))


def _reward_section(reward: Reward | str | Mapping[str, object]) -> Mapping[str, object]:
    if isinstance(reward, Mapping):
        return reward
    if isinstance(reward, str):
        return {"use": reward}
    return {"use": _named(reward)}


def _named(function: Callable[..., object]) -> str:
    """``module:name`` if that import gives this very object, else ``python:name``: only Python can resume it then."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is not None and module.__name__ != "__main__" and getattr(module, name, None) is function:
        return f"{module.__name__}:{name}"
    return f"python:{name}"


def _merged(before: object, value: object) -> object:
    """A section that was begun by another argument takes further keys."""
    if isinstance(before, dict) and isinstance(value, Mapping):
        return {**before, **value}
    return value
