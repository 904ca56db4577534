"""Reading runs: what counts, in the words that the command line and dashboards use. Never writes.

Works while the run is being written and after a crash. A view is a snapshot; make another to see more.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from stretto.errors import ConfigError, StoreError, nearest
from stretto.store.checkpoints import Found, newest
from stretto.store.describe import RunInfo, read_info
from stretto.store.events import AttemptBody, EndBody, EndStatus, ErrorBody, EvalBody, Event, Example, StepBody
from stretto.store.history import History, effective_events, effective_groups, placed
from stretto.store.lock import is_locked
from stretto.store.rollouts import RecordedGroup, read_rollouts
from stretto.store.run import read_events
from stretto.types import Json

__all__ = ["Evaluation", "RunStatus", "RunView", "find_run", "list_runs", "newest_run"]

RunStatus: TypeAlias = Literal["running", "killed"] | EndStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation when ``step`` steps of ``phase`` were done."""

    phase: str
    step: int
    body: EvalBody


class RunView:
    """A snapshot of a run at ``path``. Raises StoreError, naming file and line, if its record is damaged."""

    def __init__(self, path: Path) -> None:
        # The lock is looked at first: a run that ends in between has its end event read, and is not called killed.
        locked = is_locked(path / "run.lock")
        self.path = path
        self.info: RunInfo = read_info(path / "run.json")
        self.all_events: tuple[Event, ...] = tuple(read_events(path / "events.jsonl"))
        self.events: tuple[Event, ...] = tuple(effective_events(self.all_events))
        self.status: RunStatus = _status(self.all_events, locked)

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.path.name

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.info.seed

    @cached_property
    def steps(self) -> int:
        """Steps of the main phase that are done."""
        return self.steps_of("main")

    def steps_of(self, phase: str) -> int:
        """Steps of a phase that are done."""
        return max((step + 1 for step, _ in self._step_bodies(phase)), default=0)

    @property
    def wall_s(self) -> float:
        """Wall seconds of all attempts; of one that was killed or goes on, up to its last record."""
        return sum(wall for wall, _ in self._spent())

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all attempts; of one that was killed or goes on, up to its last step."""
        return sum(cpu for _, cpu in self._spent())

    def evaluations(self, phase: str = "main", name: str | None = None) -> list[Evaluation]:
        """The evaluations of a phase, in order; only those of the set ``name`` if it is given."""
        return [
            Evaluation(phase=phase, step=event.step or 0, body=event.body)
            for event in self.events
            if isinstance(event.body, EvalBody) and event.phase == phase and name in (None, event.body.name)
        ]

    def evaluated(self, phase: str = "main") -> tuple[str, ...]:
        """The names of the sets that a phase evaluated, the one that stands for the run first: ``held_out`` if there is
        that share, else the first that was evaluated."""
        names = dict.fromkeys(e.body.name for e in self.evaluations(phase))
        return tuple(sorted(names, key=lambda name: name != "held_out"))

    def leading(self, phase: str = "main") -> list[Evaluation]:
        """The evaluations of the set that stands for the run."""
        names = self.evaluated(phase)
        return self.evaluations(phase, names[0]) if names else []

    def examples(self, phase: str = "main", name: str | None = None) -> list[tuple[int, tuple[Example, ...]]]:
        """(steps done, examples) of every evaluation of a phase, or only of those called ``name``."""
        return [(e.step, e.body.examples) for e in self.evaluations(phase, name)]

    def history(self, metric: str, phase: str = "main") -> list[tuple[int, float]]:
        """(step, value) of a metric at every step that reported it."""
        return [(step, body.metrics[metric]) for step, body in self._step_bodies(phase) if metric in body.metrics]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric of the main phase."""
        return {name: value for _, body in self._step_bodies("main") for name, value in body.metrics.items()}

    def errors(self) -> list[ErrorBody]:
        """Every error of every attempt."""
        return [event.body for event in self.all_events if isinstance(event.body, ErrorBody)]

    def groups(self, phase: str = "main", step: int | None = None, *, filtered: bool = False) -> list[RecordedGroup]:
        """The finished groups of a phase by draw; with ``step`` only those known to be of that step.

        ``filtered``: with those that a filter kept from training, which say ``why``.
        """
        known = placed(self.all_events, phase, read_rollouts(self.path / "rollouts", phase))
        groups = effective_groups(History.of(self.all_events), known)
        return [group for group in groups if step in (None, group.step) and (filtered or not group.why)]

    def checkpoint(self) -> Found:
        """The newest whole checkpoint, every byte checked, and what was skipped for it."""
        return newest(self.path / "checkpoints")

    def summary(self) -> dict[str, Json]:
        """What ``stretto runs show --json`` prints. A number that is not finite is null."""
        return {
            "run": self.name,
            "status": self.status,
            "steps": self.steps,
            "seed": self.seed,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "warmup": {"steps": self.steps_of("warmup"), "evals": self._evals("warmup")},
            "evals": self._evals("main"),
            "metrics": {name: _finite(value) for name, value in self.metrics.items()},
        }

    def _evals(self, phase: str) -> list[Json]:
        return [
            {
                "step": e.step,
                "name": e.body.name,
                "accuracy": _finite(e.body.accuracy),
                "n": e.body.n,
                "metrics": {name: _finite(value) for name, value in e.body.metrics.items()},
            }
            for e in self.evaluations(phase)
        ]

    def _step_bodies(self, phase: str) -> Iterator[tuple[int, StepBody]]:
        for event in self.events:
            if isinstance(event.body, StepBody) and event.phase == phase and event.step is not None:
                yield event.step, event.body

    def _spent(self) -> Iterator[tuple[float, float]]:
        """(wall, CPU) seconds of each attempt."""
        start = wall = cpu = 0.0
        begun = False
        for event in self.all_events:
            match event.body:
                case AttemptBody():
                    if begun:
                        yield wall, cpu
                    begun, start, wall, cpu = True, event.time_s, 0.0, 0.0
                case EndBody():
                    wall, cpu = event.body.wall_s, event.body.cpu_s
                case StepBody():
                    wall, cpu = event.time_s - start, event.body.cpu_s
                case _:
                    wall = max(wall, event.time_s - start) if begun else 0.0
        if begun:
            yield wall, cpu


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _status(events: tuple[Event, ...], locked: bool) -> RunStatus:
    """How the newest attempt stands."""
    for event in reversed(events):
        if isinstance(event.body, EndBody):
            return event.body.status
        if isinstance(event.body, AttemptBody):
            break
    return "running" if locked else "killed"


def list_runs(runs_dir: Path) -> list[Path]:
    """The folders of all runs, oldest first."""
    if not runs_dir.is_dir():
        return []
    runs = [path for path in runs_dir.iterdir() if (path / "run.json").is_file()]
    return sorted(runs, key=lambda path: (_created_s(path), path.name))


def _created_s(path: Path) -> float:
    """When a run was created; one whose ``run.json`` is damaged counts as older than all, and hides no other."""
    try:
        return read_info(path / "run.json").created_s
    except StoreError:
        return 0.0


def newest_run(runs_dir: Path) -> Path:
    """The run created last. Raises ConfigError if there is none."""
    runs = list_runs(runs_dir)
    if not runs:
        raise ConfigError(f"there is no run in {runs_dir}. `stretto train quickstart` makes one.")
    return runs[-1]


def find_run(runs_dir: Path, name_or_path: str) -> Path:
    """The folder of a run by its name in ``runs_dir``, or by path. Raises ConfigError with the nearest name."""
    for path in (runs_dir / name_or_path, Path(name_or_path)):
        if (path / "run.json").is_file():
            return path.absolute() if path.name in ("", "..") else path
    known = [path.name for path in list_runs(runs_dir)]
    raise ConfigError(f"there is no run {name_or_path!r} in {runs_dir}.{nearest(name_or_path, known)}")
