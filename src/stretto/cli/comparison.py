"""``runs compare``: the figures of several runs side by side, the settings that differ, and whether runs that should be
equal are. Plain text made from their records."""

import json
from collections.abc import Callable, Sequence

from stretto.api.progress import duration, percent
from stretto.store import OF_THE_MACHINE, RunView, first_difference, settings_of
from stretto.types import Json

__all__ = ["compare_text"]

Row = tuple[str, ...]

NOT_THE_EXPERIMENT = ("name", "runs_dir", "save", "export", "publish", "offload")
"""Settings that change nothing of what a run computes."""


def compare_text(views: Sequence[RunView]) -> str:
    """Everything that ``runs compare`` prints about two or more runs."""
    differing = _settings(views)
    parts = [_table([("", *(view.name for view in views)), *_figures(views)])]
    evaluations = _evaluations(views)
    if evaluations:
        parts.append("Evaluations, first -> last:\n" + _table(evaluations))
    metrics = _metrics(views)
    if metrics:
        parts.append("Metrics of the last step:\n" + _table(metrics))
    parts.append("Settings that differ:\n" + _table(differing) if differing else "No setting differs.\n")
    surroundings = _surroundings(views)
    if surroundings:
        parts.append("Surroundings that differ (bits depend on them):\n" + _table(surroundings))
    parts += [_sameness(views[0], other) for other in views[1:]]
    return "\n".join(part for part in parts if part)


def _figures(views: Sequence[RunView]) -> list[Row]:
    rows: list[tuple[str, Callable[[RunView], str]]] = [
        ("status", lambda v: v.status),
        ("seed", lambda v: f"{v.seed}"),
        ("warm-up steps", lambda v: f"{v.steps_of('warmup')}"),
        ("steps", lambda v: f"{v.steps}"),
        ("wall time", lambda v: duration(v.wall_s)),
        ("CPU time", lambda v: duration(v.cpu_s)),
        ("CPU time per step", lambda v: _per_step(v)),
        ("begun from", lambda v: v.info.parent or "-"),
    ]
    made = [(name, *(figure(view) for view in views)) for name, figure in rows]
    return [row for row in made if row[0] not in ("warm-up steps", "begun from") or set(row[1:]) - {"0", "-"}]


def _per_step(view: RunView) -> str:
    """Training and waiting for rollouts of the main phase, without evaluations and saves."""
    spent = [
        sum(value for _, value in view.history(name))
        for name in ("time/wait_s", "time/train_s", "time/drain_s", "time/publish_s")
    ]
    return f"{sum(spent) / view.steps:.3f}s" if view.steps and sum(spent) else "-"


def _evaluations(views: Sequence[RunView]) -> list[Row]:
    names = dict.fromkeys(e.body.name for view in views for e in view.evaluations())
    return [(f"{name}/accuracy", *(_course(view, name) for view in views)) for name in names]


def _course(view: RunView, name: str) -> str:
    found = [e.body for e in view.evaluations() if e.body.name == name]
    if not found:
        return "-"
    last = f"{percent(found[-1].accuracy)} of {found[-1].n}"
    return f"{percent(found[0].accuracy)} -> {last}" if len(found) > 1 else last


def _metrics(views: Sequence[RunView]) -> list[Row]:
    names = sorted({name for view in views for name in view.metrics if not name.startswith(OF_THE_MACHINE)})
    return [(name, *(f"{v.metrics[name]:.5g}" if name in v.metrics else "-" for v in views)) for name in names]


def _settings(views: Sequence[RunView]) -> list[Row]:
    found = [settings_of(view) for view in views]
    keys = [key for key in dict.fromkeys(k for one in found for k in one) if key not in ("name", "runs_dir")]
    return [(key, *(_shown(one, key) for one in found)) for key in keys if len({_shown(o, key) for o in found}) > 1]


def _shown(settings: dict[str, Json], key: str) -> str:
    if key not in settings:
        return "-"
    value = settings[key]
    return value if isinstance(value, str) else json.dumps(value)


def _surroundings(views: Sequence[RunView]) -> list[Row]:
    """Machine, threads, versions and code, where they are not the same."""
    rows: list[Row] = [
        ("machine", *(v.info.machine for v in views)),
        ("threads", *(f"{v.info.threads}" for v in views)),
        ("code", *(_code(v) for v in views)),
    ]
    packages = dict.fromkeys(name for view in views for name in view.info.versions)
    rows += [(name, *(view.info.versions.get(name, "-") for view in views)) for name in packages]
    return [row for row in rows if len(set(row[1:])) > 1]


def _code(view: RunView) -> str:
    code = view.info.code
    return "-" if code is None else f"{code.commit[:10]}{' with changes' if code.dirty else ''}"


def _sameness(one: RunView, other: RunView) -> str:
    """For runs of the same settings: the first number in which they part, or that they don't."""
    differing = [row[0] for row in _settings([one, other])]
    if any(key.partition(".")[0] not in NOT_THE_EXPERIMENT for key in differing):
        return ""
    found, shared = first_difference(one, other)
    same = "have the same settings"
    if differing:
        same = f"differ in no setting that decides results (only in {', '.join(differing)})"
    pair = f"{one.name} and {other.name} {same}"
    if found is None:
        return f"{pair}, and all of their {shared:,} shared numbers are the same to the bit.\n"
    return (
        f"{pair} and should be the same to the bit on one kind of machine, and they part at "
        f"{found.where}: {found.a} | {found.b}.\n"
    )


def _table(rows: Sequence[Row]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(f"{c:<{w}}" for c, w in zip(r, widths, strict=True)).rstrip() + "\n" for r in rows)
