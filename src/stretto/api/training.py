"""``stretto.train``: a run from Python, with the caller's own workflow, prompts and reward."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stretto.api.arguments import PromptsLike, RewardLike, What, ask, given_prompts, given_reward, with_model
from stretto.api.progress import shown
from stretto.api.runs import resume as resume_run
from stretto.api.runs import start
from stretto.environments.contract import Factory
from stretto.graph import Workflow
from stretto.runtime.build import Given
from stretto.runtime.filters import GroupFilter
from stretto.store import Evaluation, Event, RunView, find_run
from stretto.types import Group

__all__ = ["Run", "resume", "train"]

Observer = Callable[[Event], None]


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
    what: What = "grpo",
    *,
    prompts: PromptsLike | Mapping[str, object] | None = None,
    reward: RewardLike | None = None,
    model: str | Mapping[str, object] | None = None,
    held_out: float | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    **sections: object,
) -> Run:
    """Train, and return the finished run.

    ``what``: a workflow of your own, the name of a built-in one, of an algorithm or of a packaged recipe, or a recipe's
    file. ``prompts``: strings, dicts with ``prompt`` and ``answer``, Prompts or a ``datasets.Dataset``; or a section,
    in which ``use`` may be such an object: ``{"use": rows, "prompt": "question"}``. ``reward``: a function
    ``(prompt, trajectory) -> float``, its name, a list of them, or a section in which ``use`` may be a function.
    ``model``: a folder or built-in name. ``held_out``: the share of the prompts that is kept for evaluation (of given
    ones none by default). ``observer``: a function that gets every event. ``progress``: show on standard output how it
    goes, as the command line does (None: on a terminal or in a notebook). ``sections``: everything else, a section of a
    recipe or a key of it: ``steps=50, sampling={"n": 4}, schedule={"groups_per_step": 8}``; ``environment`` may be a
    class with ``start()`` and ``reply(text)``, ``filter`` a function ``(group) -> bool | str``, either also as the
    ``use`` of a section.

    No ``__main__`` guard is needed.

    Example::

        def short(prompt, trajectory):
            return 1.0 - trajectory.num_written / 16

        run = stretto.train("grpo", prompts=["hello ", "world "], reward=short, steps=20)
        print(run.metrics["reward/mean"])

    Raises ConfigError, GraphError or DataError before anything starts, RunError if the run failed.
    """
    asked = ask(what, with_model(sections, model, held_out), prompts=prompts, reward=reward)
    with shown(progress, observer) as seen:
        return Run(start(asked.recipe, hint=asked.hint, given=asked.given, observer=seen))


def resume(
    run: str | Path,
    *,
    workflow: Workflow | None = None,
    prompts: PromptsLike | Mapping[str, object] | None = None,
    reward: RewardLike | None = None,
    environment: Factory | None = None,
    filter: GroupFilter | None = None,
    overrides: Sequence[str] = (),
    runs_dir: str | Path = "runs",
    observer: Observer | None = None,
    progress: bool | None = None,
) -> Run:
    """Go on with a run that stopped; pass again the Python objects it was made with.

    ``overrides`` are keys that a resume may change, as on the command line: ``["steps=200"]``. ``progress`` and
    ``observer`` are those of ``train``.
    """
    given = Given(
        workflow=workflow,
        prompts=given_prompts(prompts),
        reward=given_reward(reward),
        environment=environment,
        filter=filter,
    )
    with shown(progress, observer) as seen:
        return Run(resume_run(find_run(Path(runs_dir), str(run)), overrides, given=given, observer=seen))
