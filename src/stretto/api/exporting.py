"""What a run leaves for other tools: a policy as a Hugging Face folder, its numbers as CSV, its rollouts as JSON lines.

Every export is a folder that is whole or not there, and never written over. Owns the formats and the choice of the
checkpoint; the record is ``store``'s, the weights are the backend's.
"""

import csv
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from stretto.api.runs import recipe_of
from stretto.data.locations import locate
from stretto.data.tokens import load_tokenizer
from stretto.errors import ConfigError, ResumeError, StoreError
from stretto.runtime.exports import write_model
from stretto.runtime.opening import open_model
from stretto.store import (
    PHASES,
    Checkpoint,
    EvalBody,
    RunView,
    StepBody,
    checkpoint_name,
    list_checkpoints,
    load_manifest,
    read_json,
    verify,
)
from stretto.types import Json, Trajectory

__all__ = ["choose_checkpoint", "export_csv", "export_model", "export_samples", "write_folder"]

BEST = "held_out/accuracy"
"""What ``best`` goes by where the recipe's ``save.keep_best`` names nothing."""


def export_model(view: RunView, to: Path, step: str | None = None) -> Checkpoint:
    """Write what a checkpoint's run trains (its policy, or its reward model) with its tokenizer, as transformers loads
    them; the checkpoint it is of.

    ``step``: see ``choose_checkpoint``. Raises ConfigError if ``to`` is taken or the run has no weights.
    """
    recipe = recipe_of(view)
    checkpoint = choose_checkpoint(view, step)
    model = str(read_json(checkpoint.path / "state.json").get("exports", "policy"))
    tokenizer = load_tokenizer(locate(recipe.model.path, recipe.model.revision).path)

    def write(folder: Path) -> None:
        backend = open_model(recipe, model)
        try:
            backend.load(checkpoint.path)
            write_model(backend, model, tokenizer, folder)
        finally:
            backend.close()

    write_folder(to, write)
    return checkpoint


def choose_checkpoint(view: RunView, step: str | None = None) -> Checkpoint:
    """The newest whole checkpoint of a run (``step`` None), or one by ``step``, every byte of it checked.

    ``step`` is a number of main steps, a checkpoint's name such as ``warmup-step-30``, or ``best``: the saved step with
    the highest evaluation. Raises ConfigError that lists what there is, StoreError if the one named is damaged.
    """
    folder = view.path / "checkpoints"
    paths = {path.name: path for path in list_checkpoints(folder)}
    there = f"Saved: {', '.join(paths)}." if paths else "None is saved: resume the run until it has saved one."
    if step is None:
        taken = view.checkpoint().taken
        if taken is None:
            raise ResumeError(f"run {view.name!r} has no whole checkpoint. {there}")
        return taken
    if step == "best":
        return verify(_best(view, paths.values(), there))
    name = checkpoint_name("main", int(step)) if step.isdecimal() else step
    if name not in paths:
        raise ConfigError(f"run {view.name!r} has no checkpoint {name!r}. {there}")
    return verify(paths[name])


def _best(view: RunView, paths: Iterable[Path], there: str) -> Path:
    """The checkpoint of the main phase with the highest evaluation at its own step; of equals the newest."""
    metric = recipe_of(view).save.keep_best or BEST
    rated: list[tuple[float, int, Path]] = []
    for index, path in enumerate(paths):
        header = load_manifest(path).header
        if header.phase == "main" and header.evaluated_at == header.steps_done and metric in header.metrics:
            rated.append((header.metrics[metric], index, path))
    if not rated:
        raise ConfigError(
            f"run {view.name!r} has no checkpoint that was evaluated for {metric} at its own step, so none is "
            f"the best. {there} Name one by --step."
        )
    return max(rated)[2]


def export_csv(view: RunView, to: Path) -> tuple[int, int]:
    """Write ``metrics.csv`` (a row per step) and ``evaluations.csv`` (a row per evaluation) of both phases into ``to``.

    Returns how many rows each has. A value that a row does not have is empty. ``steps_done`` of a step counts the step
    itself, so that its row stands where an evaluation after it does: it is one more than the event's ``step``.
    """
    steps = [
        {"phase": e.phase, "steps_done": (e.step or 0) + 1, **e.body.metrics}
        for e in view.events
        if isinstance(e.body, StepBody)
    ]
    evaluations = [
        {"phase": e.phase, "steps_done": e.step, "name": b.name, "accuracy": b.accuracy, "n": b.n, **b.metrics}
        for e in view.events
        if isinstance(b := e.body, EvalBody)
    ]

    def write(folder: Path) -> None:
        _write_csv(folder / "metrics.csv", ["phase", "steps_done"], steps)
        _write_csv(folder / "evaluations.csv", ["phase", "steps_done", "name", "accuracy", "n"], evaluations)

    write_folder(to, write)
    return len(steps), len(evaluations)


def export_samples(view: RunView, to: Path) -> int:
    """Write ``samples.jsonl`` into ``to``: a line for every attempt of both phases, by draw. Returns how many."""
    count = 0

    def write(folder: Path) -> None:
        nonlocal count
        with open(folder / "samples.jsonl", "w", encoding="utf-8") as file:
            for row in _samples(view):
                file.write(json.dumps(row, ensure_ascii=False, default=list) + "\n")
                count += 1

    write_folder(to, write)
    return count


def _samples(view: RunView) -> Iterable[dict[str, Json]]:
    for phase in PHASES:
        for recorded in view.groups(phase):
            prompt = recorded.group.prompt
            for t in recorded.group.attempts:
                yield {
                    "phase": phase,
                    "steps_done": None if recorded.step is None else recorded.step + 1,
                    "draw": t.key.draw,
                    "sample": t.key.sample,
                    "uid": prompt.uid,
                    "prompt": prompt.text,
                    "completion": t.text,
                    **_conversation(t),
                    "reward": t.reward,
                    "rewards": dict(t.rewards),
                    "finish": t.finish,
                    "tokens": t.num_written,
                    "version": t.versions[-1].version if t.versions else None,
                    "data": dict(prompt.data),
                }


def _conversation(t: Trajectory) -> dict[str, Json]:
    """What was said after the prompt, of an attempt with an environment: ``completion`` is its last turn only."""
    if "turns" not in t.info:
        return {}
    return {"messages": [{"role": m.role, "content": m.content} for m in t.messages]}


def _write_csv(path: Path, first: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    columns = [*first, *sorted({name for row in rows for name in row} - set(first))]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def write_folder(to: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a folder beside ``to``, then give it that name. Whatever goes wrong leaves nothing."""
    if to.is_symlink() or (to.exists() and (not to.is_dir() or any(to.iterdir()))):
        raise ConfigError(f"{to} exists already, and nothing is written over. Give another folder, or remove it.")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".new-{to.name}-", dir=to.parent) as temporary:
            whole = Path(temporary) / "whole"
            whole.mkdir()
            write(whole)
            os.replace(whole, to)
    except OSError as error:
        raise StoreError(f"{to} cannot be written: {error.strerror or error}. Give another folder.") from error
