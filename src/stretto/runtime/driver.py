"""The driver: one loop for every workflow and schedule. It moves groups and numbers; weights go from learner to engine.

    admit ──▶ [ per-group nodes, one task a draw ] ──▶ pool ──▶ take ──▶ [ per-step program ] ──▶ window ──▶ admit
                 engine, rewards                                            learner

A *window* follows every step: what runs ahead drains (or is paused, ``schedule.in_flight``), the new weights are
published as version ``step``, evaluation and checkpoint are taken if due. Nothing is sampled while weights change, and
what is on disk is always the state of a window: a run that resumes from it gives the same bits if it drains, and begins
with the draws that were under way if it does not.

``take`` waits for the groups of the next step: the last of them wakes it, or a failure, or a request to stop. The
window waits for draws that run ahead if they drain. Nothing else waits.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stretto.errors import EngineError, Interrupted, StoreError, TrainError
from stretto.runtime.build import Job
from stretto.runtime.checkpoint import Position, capture, write_state
from stretto.runtime.evaluation import evaluate
from stretto.runtime.orders import PromptOrder, success_rates
from stretto.runtime.parts import Parts
from stretto.runtime.periodic import Moment, Periodic, due_after
from stretto.runtime.phases import Phase
from stretto.runtime.pool import Drawn, Pool, Taken
from stretto.runtime.probe import probe_weights
from stretto.runtime.recording import Clock, Recorder
from stretto.runtime.runner import Runner
from stretto.runtime.saved import SavedRunner
from stretto.runtime.worker import UNTRAINED
from stretto.store import Header, word_for
from stretto.types import Group, Prompt

__all__ = ["Driver"]


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Where the phase that runs stands. ``in_window``: weights and pool are those after ``step`` steps. ``tried_at``:
    after which step evaluations were last made, whatever came of them."""

    phase: Phase
    order: PromptOrder
    runner: Runner | SavedRunner
    pool: Pool
    step: int
    saved_at: int | None
    evaluated_at: int | None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    skipped_in_row: int = 0
    tried_at: int | None = None
    in_window: bool = True
    done: bool = False


class Driver:
    """Runs the phases of a run from a position to the end. What it uses is opened and closed elsewhere."""

    def __init__(self, job: Job, parts: Parts, recorder: Recorder, stop: asyncio.Event) -> None:
        self._job, self._parts, self._record, self._stop = job, parts, recorder, stop
        self._clock = Clock()
        self._probed = False

    async def run(self, at: Position) -> None:
        """Run what is left after ``at``. Raises Interrupted once a stop was asked for and the state is saved."""
        for index in range(at.phase_index, len(self._job.phases)):
            begin = at if index == at.phase_index else Position()
            progress = self._open(self._job.phases[index], begin)
            try:
                await self._loop(progress, begin)
            except BaseException as failure:
                await progress.runner.close()
                if progress.in_window and progress.saved_at != progress.step and _leaves_good_state(failure):
                    await self._save(progress)
                raise

    async def _loop(self, p: _Progress, at: Position) -> None:
        """The loop of a phase."""
        self._record.enter(p.phase, p.step)
        if p.step == 0:
            self._parts.worker.memory.clear()
            await self._parts.worker.call(p.phase.begin, self._parts.backend)
        await self._publish(p)
        due = due_after(p.phase.evaluate.every, p.step) if p.step else p.phase.evaluate.at_start
        if due and p.evaluated_at != p.step:  # also after a resume, if the evaluation of this step had failed
            await self._evaluate(p)
        if at.pool is not None:
            p.order.restore(at.order)
            p.pool.restore(at.pool, at.finished)
        evaluates, saves = self._periodic(p, "evaluate"), self._periodic(p, "save")
        while not p.done and (taken := await self._take(p)) is not None:
            p.in_window = False
            p.order.saw(success_rates(p.phase.order, taken))
            with self._clock("time/train_s"):
                worker, edges = self._parts.worker, _edges(taken.drawn)
                result = UNTRAINED
                if p.phase.trains:
                    result = await worker.step(p.phase.graph, edges, lambda m: p.phase.lr(m, p.step), p.step)
                    await worker.call(p.phase.end_step, self._parts.backend, p.step)
            if p.phase.in_flight == "drain":
                with self._clock("time/drain_s"):
                    await p.pool.drained()
            p.step += 1
            await self._publish(p)
            p.in_window = True
            self._record.step(p.step - 1, result, taken, self._clock.lap())
            self._count_skipped(p, result.report.skipped)
            now = _now(p)
            await self._window(p, evaluates.due(now), saves.due(now), last=p.pool.ended)
        if not p.done:  # the data ended in draws that were all dropped, or a resumed phase had nothing left
            await self._window(p, evaluates=False, saves=False, last=True)
        self._record.leave(p.phase, p.step, p.metrics)

    def _open(self, phase: Phase, at: Position) -> _Progress:
        binding = self._parts.binding(phase.namespace, phase.sampling, phase.steps)
        order = phase.open_order()

        def prompt_of(draw: int) -> Prompt:
            return phase.prompts[order.item(draw)]

        runner = Runner(phase.graph, binding, prompt_of, self._record, phase.filter)
        if phase.saved is not None:
            runner = SavedRunner(phase.saved, prompt_of, self._record, phase.filter, phase.pool.max_staleness)
        pool = Pool(phase.pool, runner.start)
        runner.serve(pool)
        return _Progress(
            phase=phase,
            order=order,
            runner=runner,
            pool=pool,
            step=at.steps_done,
            saved_at=at.steps_done if at.pool is not None else None,
            evaluated_at=at.evaluated_at,
            metrics=at.metrics,
            skipped_in_row=at.skipped_in_row,
        )

    async def _take(self, p: _Progress) -> Taken | None:
        """Admit what may run now, and wait for the groups of the next step, unless a stop is asked for first: then the
        step is abandoned."""
        with self._clock("time/wait_s"):
            if self._stop.is_set():  # groups may wait already (staleness 1); taking them would win every time
                raise self._interrupted(p)
            p.pool.admit(p.step)
            take = asyncio.ensure_future(p.pool.take())
            stop = asyncio.ensure_future(self._stop.wait())
            try:
                await asyncio.wait({take, stop}, return_when=asyncio.FIRST_COMPLETED)
                if take.done():
                    return take.result()
                raise self._interrupted(p)
            finally:
                take.cancel()
                stop.cancel()

    def _interrupted(self, p: _Progress) -> Interrupted:
        return Interrupted(
            f"Stopped by a signal in phase {p.phase.name} after {p.step} steps; the state is saved. "
            f"Go on with `stretto resume {word_for(self._record.store.path)}`."
        )

    def _periodic(self, p: _Progress, what: Literal["evaluate", "save"]) -> Periodic:
        """When to evaluate or save, from here on."""
        interval = p.phase.evaluate.every if what == "evaluate" else p.phase.save.every
        return Periodic(interval, self._record.store.path / f"{what}.now", _now(p))

    async def _window(self, p: _Progress, evaluates: bool, saves: bool, *, last: bool) -> None:
        """What is due after a step. A checkpoint comes last, so that what it vouches for is on disk before it."""
        if evaluates:
            await self._evaluate(p)
        p.done = last or (p.evaluated_at == p.step and p.phase.reached(p.metrics))
        if p.done and p.phase.evaluate.at_end and p.step not in (p.evaluated_at, p.tried_at):
            await self._evaluate(p)
        if p.done or (saves and p.saved_at != p.step):
            await self._save(p)
        self._record.store.flush()

    async def _publish(self, p: _Progress) -> None:
        """Publish the policy as version ``step``; prove it once."""
        with self._clock("time/publish_s"):
            sent = await self._parts.publish(p.step, p.phase.in_flight)
        self._record.publish(p.step, sent)
        if not self._probed:
            await probe_weights(self._parts, [p.phase.prompt_of(draw) for draw in range(2)], p.phase.sampling)
            self._probed = True

    async def _evaluate(self, p: _Progress) -> None:
        """Every set of the phase, one after the other. One that fails is recorded with its cause, and training goes on:
        what it would have told is missing from the metrics."""
        metrics: dict[str, float] = {}
        for eval_set in p.phase.sets:
            try:
                with self._clock("time/evaluate_s"):
                    result = await evaluate(self._parts, eval_set, step=p.step, steps=p.phase.steps)
            except EngineError:  # the engine that training samples from
                raise
            except Exception as failure:  # noqa: BLE001
                self._record.failed_evaluation(p.step, eval_set.name, failure)
                continue
            metrics |= result.metrics
            self._record.evaluation(p.step, result)
        p.tried_at = p.step
        if metrics:
            p.metrics, p.evaluated_at = metrics, p.step

    async def _save(self, p: _Progress) -> None:
        header = Header(
            phase=p.phase.name,
            steps_done=p.step,
            version=p.step,
            phase_done=p.done,
            metrics=p.metrics,
            evaluated_at=p.evaluated_at,
        )
        keep = p.phase.save
        with self._clock("time/save_s"):
            captured = capture(self._job, p.pool, p.order, self._parts.worker, p.skipped_in_row)
            await self._parts.worker.call(
                self._record.store.checkpoint,
                header,
                lambda folder: write_state(folder, captured, self._parts.backend),
                keep_last=keep.keep_last,
                keep_best=keep.keep_best,
            )
        p.saved_at = p.step

    def _count_skipped(self, p: _Progress, skipped: Mapping[str, str]) -> None:
        """Not-finite updates are skipped and counted; too many in a row end the run."""
        p.skipped_in_row = p.skipped_in_row + 1 if skipped else 0
        if p.skipped_in_row > self._job.recipe.backend.max_skipped:
            reasons = "; ".join(f"{model}: {why}" for model, why in sorted(skipped.items()))
            raise TrainError(
                f"{p.skipped_in_row} steps in a row had an update that was skipped ({reasons}), more than "
                f"backend.max_skipped={self._job.recipe.backend.max_skipped}. Lower backend.lr or "
                "backend.max_grad_norm, or look at the rewards; the weights are those before the first of them."
            )


def _leaves_good_state(failure: BaseException) -> bool:
    """Not a store that cannot write; nor weights that no engine can sample from, since going on would fail again."""
    return not isinstance(failure, StoreError) and not isinstance(failure.__cause__, TrainError)


def _now(p: _Progress) -> Moment:
    return Moment(step=p.step, epochs=p.pool.consumed / len(p.phase.prompts), time_s=time.monotonic())


def _edges(drawn: tuple[Drawn, ...]) -> dict[str, tuple[Group, ...]]:
    """What crosses the boundary: by per-group node, the groups of the step in draw order."""
    return {node: tuple(d.groups[node] for d in drawn) for node in drawn[0].groups}
