"""``SavedRunner`` has the face of ``Runner``: every admitted draw is answered with what another run recorded of it, and
this run's filters judge it anew. Nothing is sampled or judged. A draw that does not fit ends the run.
"""

import asyncio
from collections.abc import Callable, Sequence

from stretto.errors import PoolError
from stretto.roles import DataPlane
from stretto.runtime.drawn import Drawn
from stretto.runtime.drops import Dropped
from stretto.runtime.filters import Filter
from stretto.runtime.first_done import AnyPool
from stretto.runtime.runner import GroupRecord, Record
from stretto.runtime.saved import PromptOf, SavedGroups, check_prompt
from stretto.types import Prompt

__all__ = ["SavedRunner"]


class SavedRunner:
    """Answers the draws of one phase from a record. ``most``: how many steps what a step takes may lag."""

    def __init__(
        self,
        saved: SavedGroups,
        prompt_of: PromptOf,
        record: Record,
        filter: Filter,
        most: Callable[[int], int],
        plane: DataPlane,
    ) -> None:
        self._saved, self._prompt_of, self._record, self._filter = saved, prompt_of, record, filter
        self._most, self._plane = most, plane
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
            check_prompt(saved, draw, prompt)
            groups = {saved.node: saved.groups[draw]}
            drawn = Drawn.of(draw, groups, self._plane)
            self._check_age(drawn, step)
            dropped = self._filter.judge(draw, groups)
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
