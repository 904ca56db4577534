"""Problems that reasoning-gym makes, of one task or a mixture; each keeps its entry, which the task's scorer needs.

The library has its weak places, which this file answers for: a task that draws from Python's global random state is
given one that follows from seed and number, and the state is put back; an entry that cannot become JSON without its
scorer noticing is refused. Scoring answers is the reward's (``stretto.environments``).
"""

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from stretto.config.prompts import GymPrompts, GymTask
from stretto.data.sources.chat import as_chat
from stretto.data.sources.extras import from_extra
from stretto.data.sources.rows import Draft, Taken
from stretto.data.sources.values import as_json, short
from stretto.errors import DataError, nearest
from stretto.types import Json, Prompt

__all__ = ["allot", "missing_answers", "read_gym"]

SOURCE = "reasoning_gym"


def read_gym(config: GymPrompts, taken: Taken) -> Iterator[tuple[str, Draft]]:
    """``size`` problems, tasks in turn by their weights. The uid is the task with the problem's number among its own.

    ``data``: ``answer`` (null for a task that has none), ``task``, ``entry`` (what reasoning-gym made) and ``source``.
    """
    # Part of an extra, and a second to import, in which it seeds Python's global random state.
    with _global_random(config.seed):
        from_extra("reasoning_gym", "tasks", SOURCE)
        factory = from_extra("reasoning_gym.factory", "tasks", SOURCE)
    tasks = config.mixture
    allotted = allot([task.weight for task in tasks], config.size)
    made: dict[str, _Task] = {}
    for row in taken.among(config.size):
        place_of, index = allotted[row]
        task = tasks[place_of]
        if task.name not in made:
            size = sum(chosen == place_of for chosen, _ in allotted)
            made[task.name] = _open(factory, task, config.seed, size)
        place = f"{SOURCE} task {task.name}, problem {index}"
        entry = made[task.name].entry(place, index)
        content = as_chat(place, str(entry["question"]), chat=config.chat, system=config.system)
        data: dict[str, Json] = {"answer": entry["answer"], "task": task.name, "entry": entry, "source": SOURCE}
        yield place, Draft(uid=f"{task.name}-{index}", content=content, data=data)


def allot(weights: Sequence[float], size: int) -> list[tuple[int, int]]:
    """(task, number among its own) of every row: each row goes to the task that is furthest behind its share.

    So any first rows hold the mixture, and a larger ``size`` only adds rows.
    """
    total, counts = sum(weights), [0] * len(weights)
    rows: list[tuple[int, int]] = []
    for row in range(1, size + 1):
        task = max(range(len(weights)), key=lambda i: (weights[i] / total * row - counts[i], -i))
        rows.append((task, counts[task]))
        counts[task] += 1
    return rows


def missing_answers(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """A sentence for each task that gives no reference answers."""
    tasks = dict.fromkeys(str(prompt.data["task"]) for prompt in prompts if prompt.data["answer"] is None)
    return tuple(
        f"reasoning_gym task {task} gives problems without an answer of its own (prompt.data['answer'] is null): only "
        "its own scorer can judge them."
        for task in tasks
    )


@dataclass(slots=True, kw_only=True)
class _Task:
    """A task's problems. ``checked``: that one of its entries survives JSON was seen."""

    name: str
    dataset: Any
    seed: int
    checked: bool = False

    def entry(self, place: str, index: int) -> dict[str, Json]:
        """Problem ``index`` as JSON, with ``question`` and ``answer``."""
        with _global_random(self.seed + index):
            try:
                made: Any = self.dataset[index]
            except Exception as error:
                raise _failed(place, "cannot be made", error) from error
            try:
                entry = as_json(place, made)
            except DataError as error:
                raise DataError(
                    f"{error} So prompts cannot hold the problems of the task {self.name}. Take another task."
                ) from error
            assert isinstance(entry, dict)
            if not isinstance(entry.get("question"), str) or not isinstance(entry.get("answer"), str | None):
                raise DataError(
                    f"{place}: question {short(entry.get('question'))}, answer {short(entry.get('answer'))}, "
                    "and both must be text. Take another task."
                )
            entry.setdefault("answer", None)
            if not self.checked:
                self._check_survives(made, entry)
                self.checked = True
        return entry

    def _check_survives(self, made: Any, entry: dict[str, Json]) -> None:
        """Some scorers tell a tuple from a list, which JSON does not: their scores would be wrong."""
        before, after = (_score(self.dataset, made["answer"], form) for form in (made, entry))
        if before != after:
            raise DataError(
                f"the problems of the reasoning_gym task {self.name} do not survive JSON: its scorer gives its own "
                f"answer {before}, and {after} once the entry was written down. Take another task."
            )


def _score(dataset: Any, answer: object, entry: object) -> float | str:
    """The score, or the kind of error: some scorers raise, and what is asked is only whether both forms do."""
    try:
        return float(dataset.score_answer(answer=answer, entry=entry))
    except Exception as error:  # noqa: BLE001 - the kind of error is the result
        return type(error).__name__


def _open(factory: Any, task: GymTask, seed: int, size: int) -> _Task:
    registry: dict[str, tuple[type, type]] = factory.DATASETS
    # A composite is the library's own mixture; here that is prompts.tasks.
    names = [name for name in registry if name != "composite"]
    if task.name not in names:
        raise DataError(f"prompts.tasks: reasoning_gym has no task {task.name!r}.{_near(task.name, names)}")
    known = [f.name for f in fields(registry[task.name][1]) if f.name not in ("seed", "size")]
    unknown = next((name for name in task.settings if name not in known), None)
    if unknown is not None:
        raise DataError(
            f"prompts.tasks.{task.name}.with.{unknown}={short(task.settings[unknown])} is no setting of the task."
            f"{nearest(unknown, known)}"
        )
    with _global_random(seed):
        try:
            dataset = factory.create_dataset(task.name, seed=seed, size=size, **task.settings)
        except Exception as error:
            raise _failed(f"prompts.tasks.{task.name}.with={short(task.settings)}", "cannot be used", error) from error
    return _Task(name=task.name, dataset=dataset, seed=seed)


def _near(name: str, names: Sequence[str]) -> str:
    """The nearest name; all of them would be a hundred."""
    near = nearest(name, names)
    return near if "Did you mean" in near else f" It has {len(names)}, such as chain_sum and leg_counting."


def _failed(what: str, how: str, error: Exception) -> DataError:
    return DataError(f"{what} {how} ({type(error).__name__}: {error}). Change the settings, or take another task.")


@contextmanager
def _global_random(seed: int) -> Generator[None]:
    """Python's global random state as ``seed`` makes it, and put back after: a few tasks draw from it."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
