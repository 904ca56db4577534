"""When and where a phase's sets are evaluated: on the run's engine while training waits, or beside training, on engines
of their own that hold the weights of one step.

Results are recorded in the order of steps, whichever ends first. One that fails is recorded with its cause, and
training goes on: what it would have told is missing from the metrics.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from stretto.errors import EngineError
from stretto.runtime.eval_sets import EvalSet
from stretto.runtime.evaluation import EvalResult, evaluate
from stretto.runtime.fleet import Fleet
from stretto.runtime.parts import Parts
from stretto.runtime.phases import Phase
from stretto.runtime.recording import Recorder

__all__ = ["Evaluations"]

Took = Callable[[int, Mapping[str, float]], None]
"""What is told of an evaluation that gave something: its step and metrics."""


class Evaluations:
    """At most as many are under way as there are engines for them; a further one waits."""

    def __init__(self, parts: Parts, record: Recorder) -> None:
        self._parts, self._record = parts, record
        self._free = list(parts.evaluators)
        self._under_way: dict[int, asyncio.Task[None]] = {}

    async def evaluate(self, phase: Phase, step: int, took: Took) -> None:
        """Evaluate the policy as it is after ``step`` steps, or begin to, where that is done beside training.

        Raises EngineError if the engine that training samples from fails.
        """
        beside = phase.evaluates_beside
        here = [s for s in phase.sets if s.pairs is not None or not beside]  # pairs are found by the trainer
        there = [s for s in phase.sets if s.pairs is None and beside]
        if here:
            found = await self._all(phase, here, step, None)
            self._tell(step, found, took)
        if there:
            await self._begin(phase, there, step, took)

    async def finish(self, through: int | None = None) -> None:
        """Wait for those of steps up to ``through`` (None: all)."""
        for step in [s for s in self._under_way if through is None or s <= through]:
            await asyncio.shield(self._under_way[step])

    async def cancel(self) -> None:
        """Give up what is under way; nothing of it is recorded."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, phase: Phase, sets: Sequence[EvalSet], step: int, took: Took) -> None:
        while not self._free:
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # what is done gives its engine back in a callback
        fleet = self._free.pop()
        before = list(self._under_way.values())
        try:
            await self._parts.publication.publish(step, fleet)
        except EngineError as failure:
            self._free.append(fleet)
            for eval_set in sets:
                self._record.failed_evaluation(step, eval_set.name, failure)
            return

        async def run() -> None:
            found = await self._all(phase, sets, step, fleet)
            await asyncio.gather(*(asyncio.shield(task) for task in before), return_exceptions=True)
            self._tell(step, found, took)

        def done(task: asyncio.Task[None]) -> None:
            self._free.append(fleet)
            del self._under_way[step]

        self._under_way[step] = asyncio.get_running_loop().create_task(run(), name=f"evaluation-{step}")
        self._under_way[step].add_done_callback(done)

    async def _all(
        self, phase: Phase, sets: Sequence[EvalSet], step: int, fleet: Fleet | None
    ) -> dict[str, EvalResult | Exception]:
        """What came of each set, one after the other."""
        found: dict[str, EvalResult | Exception] = {}
        for eval_set in sets:
            try:
                found[eval_set.name] = await evaluate(
                    self._parts, eval_set, phase=phase.name, step=step, steps=phase.steps, fleet=fleet
                )
            except EngineError as failure:
                if fleet is None:  # the engine that training samples from
                    raise
                found[eval_set.name] = failure
            except Exception as failure:  # noqa: BLE001
                found[eval_set.name] = failure
        return found

    def _tell(self, step: int, found: Mapping[str, EvalResult | Exception], took: Took) -> None:
        metrics: dict[str, float] = {}
        for name, result in found.items():
            if isinstance(result, Exception):
                self._record.failed_evaluation(step, name, result)
            else:
                self._record.evaluation(step, result)
                metrics |= result.metrics
        if metrics:
            took(step, metrics)
