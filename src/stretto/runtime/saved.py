"""Groups that another run recorded, in the place of rollout: what ``debug.rollouts_from`` names.

``SavedRunner`` has the face of ``Runner``: every admitted draw is answered with what the other run recorded of it, and
this run's filters judge it anew. Nothing is sampled or judged. A draw that does not fit ends the run.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import ConfigError, PoolError
from stretto.graph import Graph, boundary_inputs
from stretto.runtime.drops import Dropped
from stretto.runtime.filters import Filter
from stretto.runtime.first_done import AnyPool
from stretto.runtime.pool import Drawn
from stretto.runtime.runner import GroupRecord, Record
from stretto.store import GroupBody, RunView, find_run
from stretto.types import Group, Prompt

__all__ = ["SavedGroups", "SavedRunner", "check_saved", "one_boundary", "read_saved"]

PromptOf = Callable[[int], Prompt]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedGroups:
    """What run ``run`` recorded of the draws of its main phase: groups, filtered ones too, and why a draw failed.

    ``node``: the per-group node whose groups they are.
    """

    run: str
    node: str
    groups: Mapping[int, Group]
    failed: Mapping[int, str]


def one_boundary(graph: Graph) -> str:
    """The per-group node whose groups a record holds. ConfigError if there are several: a record keeps one a draw."""
    nodes = boundary_inputs(graph)
    if len(nodes) != 1:
        raise ConfigError(
            f"workflow {graph.name!r} hands over the groups of {len(nodes)} nodes ({', '.join(nodes)}), and a record "
            "keeps one group a draw, so a step cannot be made from it. Use a workflow with one collect."
        )
    return nodes[0]


def read_saved(runs_dir: str, run: str, graph: Graph) -> SavedGroups:
    """The recorded groups of the main phase of ``run``. Raises ConfigError if there is no such run, or no group."""
    node = one_boundary(graph)
    view = RunView(find_run(Path(runs_dir), run))
    groups = {recorded.group.draw: recorded.group for recorded in view.groups(filtered=True)}
    if not groups:
        raise ConfigError(
            f"debug.rollouts_from={run}: that run has recorded no group of a main phase. Name another run."
        )
    failed = {
        e.body.draw: e.body.why
        for e in view.events
        if isinstance(e.body, GroupBody) and e.body.state == "dropped" and e.phase == "main"
    }
    return SavedGroups(run=view.name, node=node, groups=groups, failed=failed)


def check_saved(saved: SavedGroups, prompt_of: PromptOf | None, draws: int, groups_per_step: int) -> None:
    """Raises ConfigError unless the first ``draws`` draws are recorded, each of the prompt it has here (if known)."""
    for draw in range(draws):
        if draw not in saved.groups and draw not in saved.failed:
            raise ConfigError(
                f"debug.rollouts_from={saved.run} has no group of draw {draw}, and {draws} draws are asked for. "
                f"Set steps={max(1, draw // groups_per_step)} or fewer, or name a run that went on for longer."
            )
        if draw in saved.groups and prompt_of is not None:
            _check_prompt(saved, draw, prompt_of(draw))


class SavedRunner:
    """Answers the draws of one phase from a record. ``most``: how many steps what a step takes may lag."""

    def __init__(
        self, saved: SavedGroups, prompt_of: PromptOf, record: Record, filter: Filter, most: Callable[[int], int]
    ) -> None:
        self._saved, self._prompt_of, self._record, self._filter = saved, prompt_of, record, filter
        self._most = most
        self._pool: AnyPool | None = None

    def serve(self, pool: AnyPool) -> None:
        """Name the pool whose draws are answered."""
        self._pool = pool

    def start(self, draw: int) -> None:
        """Answer a draw, once the pool has begun all that it is beginning."""
        asyncio.get_running_loop().call_soon(self._answer, draw, self._prompt_of(draw))

    def give_up(self, draw: int, dropped: Dropped) -> None:
        """Only a schedule that takes what ends first gives up draws, and here all end at once."""
        raise AssertionError(f"draw {draw} of a record was given up: {dropped.why}")

    def took(self, step: int, drawn: Sequence[Drawn]) -> None:
        """All was recorded when it was answered."""

    async def close(self) -> None:
        """Answer no more."""
        self._pool = None

    def _answer(self, draw: int, prompt: Prompt) -> None:
        pool = self._pool
        if pool is None:
            return
        try:
            record = self._made(draw, prompt, pool.step_of(draw))
            self._record.group(record)
            if record.dropped is not None:
                pool.drop(draw, record.dropped)
            else:
                assert record.drawn is not None
                pool.finish(record.drawn)
        except BaseException as failure:  # noqa: BLE001 - a draw that ends without a word would be waited for forever
            pool.fail(failure)

    def _made(self, draw: int, prompt: Prompt, step: int) -> GroupRecord:
        saved, drawn, dropped = self._saved, None, None
        if draw in saved.failed:
            dropped = Dropped(kind="failed", why=saved.failed[draw])
        elif draw not in saved.groups:
            raise PoolError(
                f"step {step} needs draw {draw} in place of one that was dropped, and {saved.run} has recorded no "
                "group of it. Set filter as it was there, or take fewer steps."
            )
        else:
            _check_prompt(saved, draw, prompt)
            drawn = Drawn(draw=draw, groups={saved.node: saved.groups[draw]})
            self._check_age(drawn, step)
            dropped = self._filter.judge(draw, drawn.groups)
        return GroupRecord(step=step, draw=draw, uid=prompt.uid, drawn=drawn, dropped=dropped, nodes=())

    def _check_age(self, drawn: Drawn, step: int) -> None:
        """Raises PoolError for a group that was sampled by weights that this step may not train on."""
        oldest = drawn.oldest_version
        most = self._most(step)
        if oldest is None or 0 <= step - oldest <= most:
            return
        raise PoolError(
            f"draw {drawn.draw} of {self._saved.run} was sampled by weights {oldest}, and step {step} takes it, with "
            f"schedule.max_staleness={most}. Set schedule and filter as they were there."
        )


def _check_prompt(saved: SavedGroups, draw: int, prompt: Prompt) -> None:
    """Raises ConfigError if the recorded group is of another prompt than this run draws."""
    known = saved.groups[draw].prompt
    if _identity(known) != _identity(prompt):
        raise ConfigError(
            f"debug.rollouts_from={saved.run}: its draw {draw} is of prompt {known.uid!r}, and here that draw takes "
            f"{prompt.uid!r} (or other tokens or data). Set prompts, order, seed and model.path as they were there."
        )


def _identity(prompt: Prompt) -> tuple[str, bytes, str]:
    data = json.dumps(dict(prompt.data), sort_keys=True, default=list)
    return prompt.uid, prompt.token_ids.tobytes(), data
