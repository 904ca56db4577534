"""Whether two runs are the same to the bit: their metrics, evaluations, rollouts and final weights.

Times and memory are no part of what a run computed, so ``time/*`` and ``memory/*`` metrics are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar

from stretto.errors import StoreError
from stretto.store.checkpoints import list_checkpoints
from stretto.store.events import OF_THE_MACHINE, EvalBody, SettingBody, StepBody
from stretto.store.manifest import PHASES, FileEntry, load_manifest
from stretto.store.reader import RunView
from stretto.types import Json

__all__ = ["WEIGHTS", "Difference", "compare_runs", "first_difference", "settings_of"]

WEIGHTS = ("*.safetensors",)
"""Patterns of the files of a checkpoint that are compared."""

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that differs: where, and what each run has (``absent`` if nothing)."""

    where: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.where}: {self.a} | {self.b}"


def compare_runs(a: Path, b: Path, *, weights: Iterable[str] = WEIGHTS) -> list[Difference]:
    """Every difference between the records that count of two runs; none means the same bits.

    The checkpoints compared are the newest of each by name, by the hashes of their files that match ``weights``.
    """
    one, other = RunView(a), RunView(b)
    found = _differences(_numbers(one), _numbers(other))
    for phase in PHASES:
        found += _differences(_rollouts(one, phase), _rollouts(other, phase))
    patterns = tuple(weights)
    return found + _differences(_weights(a, patterns), _weights(b, patterns))


def first_difference(one: RunView, other: RunView) -> tuple[Difference | None, int]:
    """The first number that both runs have and that is not the same to the bit (None: there is none), and how many
    they share. Steps and evaluations only: rollouts that differ show in the numbers of their step."""
    left, right = _numbers(one), _numbers(other)
    shared = [where for where in left if where in right]
    found = next((w for w in shared if left[w] != right[w]), None)
    if found is None:
        return None, len(shared)
    return Difference(where=found, a=left[found], b=right[found]), len(shared)


def settings_of(view: RunView) -> dict[str, Json]:
    """Every key of a run's recipe with its value, as later attempts left it."""
    settings = dict(_flat(view.info.config))
    for event in view.all_events:
        if isinstance(event.body, SettingBody):
            settings[event.body.key] = event.body.new
    return settings


def _flat(tree: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _differences(a: Mapping[_K, _V], b: Mapping[_K, _V]) -> list[Difference]:
    missing = object()
    found: list[Difference] = []
    for key in {**a, **b}:
        left, right = a.get(key, missing), b.get(key, missing)
        if left != right:
            shown = ["absent" if value is missing else str(value) for value in (left, right)]
            found.append(Difference(where=str(key), a=shown[0], b=shown[1]))
    return found


def _numbers(view: RunView) -> dict[str, str]:
    """Every number by where it is, as the text that tells its bits (and makes NaN equal to itself)."""
    numbers: dict[str, str] = {}
    for event in view.events:
        where = f"{event.phase} step {event.step}"
        match event.body:
            case StepBody():
                numbers[where] = "done"
                values: Mapping[str, float] = event.body.metrics
            case EvalBody():
                where += f" eval {event.body.name}"
                values = {"accuracy": event.body.accuracy, "n": event.body.n, **event.body.metrics}
            case _:
                continue
        numbers |= {f"{where} {name}": repr(v) for name, v in values.items() if not name.startswith(OF_THE_MACHINE)}
    return numbers


def _rollouts(view: RunView, phase: str) -> dict[str, str]:
    """What each trajectory holds, by draw, sample and field. Not ``info``: an environment may put times there."""
    held: dict[str, str] = {}
    for recorded in view.groups(phase, filtered=True):
        group = recorded.group
        held[f"{phase} draw {group.draw} prompt"] = group.prompt.uid
        held[f"{phase} draw {group.draw} filtered"] = recorded.why
        for t in group.trajectories:
            fields = {
                "tokens": str(t.token_ids_T.tolist()),
                "mask": t.mask_T.tobytes().hex(),
                "logprobs": t.logprobs_T.tobytes().hex(),
                "versions": str([(span.version, span.length) for span in t.versions]),
                "finish": t.finish,
                "rewards": repr((t.reward, dict(t.rewards))),
            }
            held |= {f"{phase} draw {group.draw} {t.key} {name}": value for name, value in fields.items()}
    return held


def _weights(path: Path, patterns: tuple[str, ...]) -> dict[str, str | FileEntry]:
    folders = list_checkpoints(path / "checkpoints")
    if not folders:
        return {}
    newest = folders[-1]
    try:
        files = load_manifest(newest).files
    except StoreError as error:
        return {"final checkpoint": str(error)}
    matching = {
        f"final checkpoint {name}": entry
        for name, entry in files.items()
        if any(fnmatch(Path(name).name, pattern) for pattern in patterns)
    }
    return {"final checkpoint": newest.name, **matching}
