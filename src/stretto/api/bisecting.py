"""``stretto runs bisect``: the first step, node and tensor in which two runs are not the same to the bit.

    records side by side ──▶ what was drawn or judged otherwise is told from them
            │ sampled otherwise, or other numbers: weights may have parted before
            ▼
    the steps around it made again for both, part by part ──▶ the first part that differs

The runs are only read. Every run is made again with its own settings, from its own checkpoints; one after the other,
so that memory is that of one. What records show is ``parting``; what is shown of a step is ``runtime.watching``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stretto.api.arguments import PromptsLike, given_prompts
from stretto.api.host import here
from stretto.api.parting import RecordedParting, recorded_parting, shared_steps
from stretto.api.replaying import Breakpoints, job_of, workflow_of
from stretto.environments.contract import Factory
from stretto.errors import ConfigError, RunError, UserError
from stretto.graph import Graph, Workflow
from stretto.runtime.build import Given, Job
from stretto.runtime.disposer import Disposer
from stretto.runtime.edges import Leaf, first_place, leaf_hash
from stretto.runtime.filters import GroupFilter
from stretto.runtime.opening import open_backend
from stretto.runtime.replay import Past, start_before
from stretto.runtime.saved import one_boundary
from stretto.runtime.watching import BEFORE, Part, Watcher, watch
from stretto.store import PHASES, Difference, RunView, find_run, settings_of

__all__ = ["Bisected", "Parting", "bisect"]

NOT_THE_EXPERIMENT = ("name", "runs_dir", "save")
"""Settings that change nothing of what a run computes."""

CALL = "Bisect from Python: stretto.api.bisect(A, B, "
"""How the remedy begins for runs that were made with Python objects."""

Step = tuple[str, int]
"""A phase by name, and a step of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two runs part: ``what`` of ``node`` (None: not known, or of the step itself) at ``step``, the tensor or
    number ``name`` at ``index`` (empty for a single number), and what each has there.

    ``same``: what was found the same before it in that step. ``note``: what follows, or why no more can be told.
    """

    phase: str
    step: int
    node: str | None
    what: str
    name: str
    index: str
    a: str
    b: str
    same: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected:
    """Two runs side by side. ``parting`` is None if all that both recorded is the same to the bit."""

    a: str
    b: str
    parting: Parting | None
    steps: int
    groups: int
    numbers: int
    settings: tuple[Difference, ...]


def bisect(
    a: str | Path,
    b: str | Path,
    *,
    workflow: Workflow | None = None,
    prompts: PromptsLike | Mapping[str, object] | None = None,
    environment: Factory | None = None,
    filter: GroupFilter | None = None,
    runs_dir: str | Path = "runs",
) -> Bisected:
    """The first step, node and tensor in which two runs differ. Raises ConfigError if they share no step.

    Python objects that both were made with are passed again, as to ``stretto.resume``; a reward is not asked for.
    """
    one, other = (Past(RunView(find_run(Path(runs_dir), str(run)))) for run in (a, b))
    if not any(shared_steps(one, other, phase) for phase in PHASES):
        raise ConfigError(
            f"{one.view.name} and {other.view.name} have no step in common, so nothing of them can be held side by "
            "side. Name two runs with steps of the same numbers."
        )
    given = Given(workflow=workflow, prompts=given_prompts(prompts), environment=environment, filter=filter)
    found, shared = recorded_parting(one, other)
    with Breakpoints():  # code of the user's own is run again, and nobody waits at a prompt
        parting = None if found is None else _parting((one, other), found, given)
    return Bisected(
        a=one.view.name,
        b=other.view.name,
        parting=parting,
        steps=shared.steps,
        groups=shared.groups,
        numbers=shared.numbers,
        settings=_settings(one.view, other.view),
    )


def _parting(pasts: tuple[Past, Past], found: RecordedParting, given: Given) -> Parting:
    """From what the records show to where it comes from."""
    graph = _graph(pasts[0].view, found.phase, given)
    if found.kind in ("drawn", "judged"):
        return _told(found, graph, "What trains has no part in that.")
    try:
        jobs = [_job(past, found, given) for past in pasts]
        parted = here(lambda: _made_again(pasts, jobs, found))
    except (UserError, RunError) as why:  # a node of the user's may fail here too
        return _told(found, graph, f"The steps cannot be made again to find where that comes from: {why}")
    return parted if parted is not None else _told(found, graph, _unexplained(found))


def _job(past: Past, found: RecordedParting, given: Given) -> Job:
    view, step = past.view, min(found.step, past.steps(found.phase).stop - 1)
    return job_of(view, found.phase, step, given, CALL)


def _graph(view: RunView, phase: str, given: Given) -> Graph | None:
    """The workflow of a phase; None if it cannot be had here."""
    try:
        return workflow_of(view, phase, given, CALL)
    except UserError:
        return None


async def _made_again(pasts: tuple[Past, Past], jobs: Sequence[Job], found: RecordedParting) -> Parting | None:
    """The first part that differs when both are made again from the step before on, or from further back if the weights
    differ there already."""
    stop = (found.phase, found.step + (found.kind == "number"))
    known = shared_steps(*pasts, found.phase)
    near = (found.phase, max(known.start, min(found.step, known.stop) - 1))
    far = next((phase, steps.start) for phase in PHASES if (steps := shared_steps(*pasts, phase)))
    parting = await _first_difference(pasts, jobs, near, stop)
    if parting is not None and parting.what.endswith(BEFORE) and near != far:
        parting = await _first_difference(pasts, jobs, far, stop)
    if parting is not None and parting.what.endswith(BEFORE):
        return replace(parting, note="They begin with other weights: model, seed or what came before differ.")
    return parting


async def _first_difference(pasts: tuple[Past, Past], jobs: Sequence[Job], first: Step, stop: Step) -> Parting | None:
    listed = _Listing()
    await _watch(pasts[0], jobs[0], first, stop, listed)
    compared = _Comparing(listed.seen)
    await _watch(pasts[1], jobs[1], first, stop, compared)
    place = compared.place
    if place is None:
        return None
    fetched = _Fetching(place)
    await _watch(pasts[0], jobs[0], first, stop, fetched)
    here, there = fetched.found, compared.found
    known = here or there
    assert known is not None, place
    part, name, _ = known
    if here is None or there is None or here[:2] != there[:2]:
        part, name = replace(part, what="what comes next"), ""
    same = dict.fromkeys(_words(p) for p, _, _ in listed.seen[:place] if (p.phase, p.step) == (part.phase, part.step))
    index, one, other = _side_by_side(here, there)
    return Parting(
        phase=part.phase,
        step=part.step,
        node=part.node or None,
        what=part.what,
        name=name,
        index=index,
        a=one,
        b=other,
        same=tuple(words for words in same if words != _words(part)),
    )


async def _watch(past: Past, job: Job, first: Step, stop: Step, by: Watcher) -> None:
    """Make the steps from ``first`` up to ``stop`` again, in this thread."""
    names = [phase.name for phase in job.phases]
    missing = next((phase for phase, _ in (first, stop) if phase not in names), None)
    if missing is not None:
        raise ConfigError(f"run {past.view.name!r} has no phase {missing!r}.")
    span = (names.index(first[0]), first[1]), (names.index(stop[0]), stop[1])
    start = start_before(past, job, *span[0])
    async with Disposer() as disposer:
        backend = open_backend(job)
        disposer.own("the learner", backend, backend.close)
        watch(job, backend, past, start, span, by)


Seen = tuple[Part, str, Leaf]
"""A part, the name of a tensor or number in it, and that (or its hash)."""


class _Listing:
    """Keeps the hash of everything."""

    satisfied = False

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def see(self, part: Part, name: str, leaf: Leaf) -> None:
        self.seen.append((part, name, leaf_hash(leaf)))


class _Comparing:
    """Holds what it sees against a listing. ``place``: the first in it that differs; ``found``: what is here there."""

    def __init__(self, listed: Sequence[Seen]) -> None:
        self._listed, self._count = listed, 0
        self._place: int | None = None
        self.found: Seen | None = None

    @property
    def satisfied(self) -> bool:
        return self._place is not None

    @property
    def place(self) -> int | None:
        """Asked at the end: what the listing has more of differs too."""
        return self._place if self._place is not None or self._count == len(self._listed) else self._count

    def see(self, part: Part, name: str, leaf: Leaf) -> None:
        if self._place is not None:
            return
        if self._count >= len(self._listed) or self._listed[self._count] != (part, name, leaf_hash(leaf)):
            self._place, self.found = self._count, (part, name, _kept(leaf))
        self._count += 1


class _Fetching:
    """Keeps the one at ``place``."""

    def __init__(self, place: int) -> None:
        self._place, self._count = place, 0
        self.found: Seen | None = None

    @property
    def satisfied(self) -> bool:
        return self.found is not None

    def see(self, part: Part, name: str, leaf: Leaf) -> None:
        if self._count == self._place:
            self.found = (part, name, _kept(leaf))
        self._count += 1


def _kept(leaf: Leaf) -> Leaf:
    return leaf if isinstance(leaf, str) else np.array(leaf)


def _side_by_side(a: Seen | None, b: Seen | None) -> tuple[str, str, str]:
    """(index, what a has, what b has) of the place in which they part."""
    if a is None or b is None:
        return "", *_pair("nothing more" if side is None else _words(side[0]) for side in (a, b))
    if a[:2] != b[:2]:  # other nodes, or other tensors
        return "", *_pair(f"{_words(part)}: {name}" for part, name, _ in (a, b))
    return first_place(a[2], b[2])


def _pair(texts: Iterable[str]) -> tuple[str, str]:
    one, other = texts
    return one, other


def _words(part: Part) -> str:
    return f"{part.what} ({part.node})" if part.node else part.what


def _told(found: RecordedParting, graph: Graph | None, note: str) -> Parting:
    """What the records show, with the node that gave it."""
    what = {
        "drawn": "what was drawn",
        "sampled": "what was sampled",
        "judged": "how it was judged",
        "number": "a number of the step",
        "evaluation": f"an evaluation after {found.step} steps",
    }[found.kind]
    return Parting(
        phase=found.phase,
        step=found.step,
        node=None if graph is None else _node(found, graph),
        what=what,
        name=found.name,
        index=found.index,
        a=found.a,
        b=found.b,
        note=note,
    )


def _node(found: RecordedParting, graph: Graph) -> str | None:
    """The per-group node that gave what differs."""
    asked = {"sampled": "generate", "judged": "judge"}.get(found.kind)
    if asked is None:
        return None
    asking = [s.id for s in graph.group_nodes if any(role.kind == asked for role in s.roles.values())]
    return asking[0] if asking else one_boundary(graph)


def _unexplained(found: RecordedParting) -> str:
    """What it means that nothing differs when the steps are made again."""
    if found.kind == "sampled":
        return (
            "The weights before it are the same to the bit: engine, sampling, seed or prompt differ, or machine, "
            "threads or versions did when it was sampled."
        )
    if found.kind == "evaluation":
        return "The weights are the same to the bit: what is evaluated, how, or on what machine differs."
    return "Made again here, both give the same bits: machine, threads or versions differed when it was recorded."


def _settings(a: RunView, b: RunView) -> tuple[Difference, ...]:
    """The settings that differ and may decide results."""
    one, other = settings_of(a), settings_of(b)
    keys = [key for key in dict.fromkeys([*one, *other]) if key.partition(".")[0] not in NOT_THE_EXPERIMENT]
    shown = {key: [str(side[key]) if key in side else "-" for side in (one, other)] for key in keys}
    return tuple(Difference(where=key, a=x, b=y) for key, (x, y) in shown.items() if x != y)
