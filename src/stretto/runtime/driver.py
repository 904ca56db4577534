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
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from stretto.config.intervals import Interval
from stretto.errors import Interrupted, StoreError, TrainError, noting
from stretto.roles import Ref
from stretto.runtime.build import Job
from stretto.runtime.checkpoint import Position, capture
from stretto.runtime.drawn import Drawn
from stretto.runtime.evaluations import Evaluations
from stretto.runtime.exports import keep_newest
from stretto.runtime.first_done import AnyPool, open_pool
from stretto.runtime.learning import begin_phase, train_step
from stretto.runtime.orders import PromptOrder, success_rates
from stretto.runtime.parts import Parts
from stretto.runtime.periodic import Moment, Periodic, due_after
from stretto.runtime.phases import Phase
from stretto.runtime.pool import Taken
from stretto.runtime.publishing import Publisher
from stretto.runtime.recording import Clock, Recorder
from stretto.runtime.runner import Runner
from stretto.runtime.saved_runner import SavedRunner
from stretto.runtime.saving import Saving
from stretto.runtime.worker import UNTRAINED
from stretto.store import Header, word_for
from stretto.types import Prompt
from stretto.waiting import unless_stopped

__all__ = ["Driver"]


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Where the phase that runs (the ``index``-th) stands. ``in_window``: weights and pool are those after ``step``
    steps. ``tried_at``: after which step evaluations were last made, whatever came of them."""

    index: int
    phase: Phase
    order: PromptOrder
    runner: Runner | SavedRunner
    pool: AnyPool
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
        self._publisher = Publisher(parts, job.recipe.publish)
        self._evaluations = Evaluations(parts, recorder)
        self._saving = Saving(recorder.store)

    async def run(self, at: Position) -> None:
        """Run what is left after ``at``. Raises Interrupted once a stop was asked for and the state is saved."""
        for index in range(at.phase_index, len(self._job.phases)):
            begin = at if index == at.phase_index else Position()
            progress = self._open(index, begin)
            try:
                await self._loop(progress, begin)
            except BaseException as failure:
                await self._abandon(progress, failure)
                raise

    async def _abandon(self, p: _Progress, failure: BaseException) -> None:
        """End what runs, and keep the state if it is that of a window. Interrupted says that it is kept, so it is."""
        await p.runner.close()
        try:
            with nullcontext() if isinstance(failure, Interrupted) else noting(failure, "saving the state"):
                if p.in_window and p.saved_at != p.step and _leaves_good_state(failure):
                    await self._save(p, waits=True)
                await self._saving.finish()
        finally:
            await self._evaluations.cancel()

    async def _loop(self, p: _Progress, at: Position) -> None:
        """The loop of a phase."""
        self._record.enter(p.phase, p.step)
        await self._parts.colocation.train()
        if p.step == 0:
            self._parts.publication.changing()
            await self._parts.learners.call(begin_phase, p.index)
        await self._publish(p)
        due = due_after(p.phase.evaluate.every, p.step) if p.step else p.phase.evaluate.at_start
        if at.pool is not None:
            p.order.restore(at.order)
            p.pool.restore(at.pool, at.finished)
        if due and p.evaluated_at != p.step:  # also after a resume, if the evaluation of this step had come to nothing
            await (self._window(p, {"evaluate"}, last=False) if p.step else self._evaluate(p))
        asked = {what: self._periodic(p, what) for what in ("evaluate", "save", "export")}
        while not p.done and (taken := await self._take(p)) is not None:
            p.in_window = False
            p.runner.took(p.step, taken.drawn)
            p.order.saw(success_rates(p.phase.order, taken))
            with self._clock("time/train_s"):
                await self._parts.colocation.train()
                result = UNTRAINED
                if p.phase.trains:
                    self._parts.publication.changing()
                    result = await self._parts.learners.call(train_step, p.index, p.step, _places(taken.drawn))
            if p.phase.in_flight == "drain":
                with self._clock("time/drain_s"):
                    await p.pool.drained()
            p.step += 1
            await self._publish(p)
            self._parts.plane.free([ref for drawn in taken.drawn for ref in drawn.refs.values()])
            self._record.step(p.step - 1, result, taken, self._clock.lap() | self._parts.colocation.peaks())
            p.in_window = True  # not before: a state that is kept has the record of its step
            self._count_skipped(p, result.report.skipped)
            now = _now(p)
            await self._window(p, {what for what, work in asked.items() if work.due(now)}, last=p.pool.ended)
        if not p.done:  # the data ended in draws that were all dropped, or a resumed phase had nothing left
            await self._window(p, set(), last=True)
        self._record.leave(p.phase, p.step, p.metrics)

    def _open(self, index: int, at: Position) -> _Progress:
        phase, parts = self._job.phases[index], self._parts
        order = phase.open_order()

        def prompt_of(draw: int) -> Prompt:
            return phase.prompts[order.item(draw)]

        def uid_of(item: int) -> str:
            return phase.prompts[item].uid

        runner = Runner(parts.rollers, parts.plane, index, order.item, uid_of, self._record)
        if phase.saved is not None:
            most = phase.pool.staleness_of
            runner = SavedRunner(phase.saved, prompt_of, self._record, phase.filter, most, parts.plane)
        pool = open_pool(phase.pool, runner.start, runner.give_up)
        runner.serve(pool)
        return _Progress(
            index=index,
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
                raise Interrupted(self._told(p))
            p.pool.admit(p.step)
            take = asyncio.ensure_future(p.pool.take())
            stop = asyncio.ensure_future(self._stop.wait())
            try:
                await asyncio.wait({take, stop}, return_when=asyncio.FIRST_COMPLETED)
                if take.done():
                    return take.result()
                raise Interrupted(self._told(p))
            finally:
                take.cancel()
                stop.cancel()

    def _told(self, p: _Progress) -> str:
        """What is said of a stop."""
        return (
            f"Stopped by a signal in phase {p.phase.name} after {p.step} steps; the state is saved. "
            f"Go on with `stretto resume {word_for(self._record.store.path)}`."
        )

    def _periodic(self, p: _Progress, what: str) -> Periodic:
        """When to evaluate, save or export, from here on."""
        every: dict[str, Interval | None] = {
            "evaluate": p.phase.evaluate.every,
            "save": p.phase.save.every,
            "export": p.phase.export.every,
        }
        return Periodic(every[what], self._record.store.path / f"{what}.now", _now(p))

    async def _window(self, p: _Progress, due: Collection[str], *, last: bool) -> None:
        """What is due after a step. A checkpoint comes last, so that what it vouches for is on disk before it."""
        if "evaluate" in due:
            await self._evaluate(p)
        p.done = last or (p.evaluated_at == p.step and p.phase.reached(p.metrics))
        if p.done and p.phase.evaluate.at_end and p.step not in (p.evaluated_at, p.tried_at):
            await self._evaluate(p)
        if p.done:
            await self._evaluations.finish()
        if "export" in due:
            folder = self._record.store.path / "exports"
            with self._clock("time/export_s"):
                await self._parts.export(self._job.exports, folder / f"step-{p.step}")
                keep_newest(folder, p.phase.export.keep_last)
        if p.done or ("save" in due and p.saved_at != p.step):
            await self._save(p, waits=p.done or not p.phase.save.background)
        self._record.store.flush()

    async def _publish(self, p: _Progress) -> None:
        """Publish the policy as version ``step``, and prove that it arrived if that is due."""
        with self._clock("time/publish_s"):
            published = await self._publisher.publish(p.step, p.index, p.phase, p.phase.in_flight)
        self._record.publish(p.step, published.sent)
        if (
            published.gap is not None and self._job.recipe.publish.check_weights == "always"
        ):  # else attempts would differ
            self._clock.note("publish/gap", published.gap)

    async def _evaluate(self, p: _Progress) -> None:
        """Every set of the phase. Raises Interrupted if a stop is asked for before they are done."""

        def took(step: int, metrics: Mapping[str, float]) -> None:
            p.metrics, p.evaluated_at = metrics, step

        try:
            with self._clock("time/evaluate_s"):
                evaluating = self._evaluations.evaluate(p.phase, p.step, took)
                await unless_stopped(evaluating, self._stop, self._told(p))
        except Interrupted:
            p.done = False  # what is left to do is this evaluation
            raise
        p.tried_at = p.step

    async def _save(self, p: _Progress, *, waits: bool) -> None:
        """Take the state; ``waits``: until it is on disk, else training goes on while it is written.

        Evaluations of earlier steps are waited for: a run that resumes from here could not make them again.
        """
        best = p.phase.save.keep_best is not None
        with self._clock("time/evaluate_s"):
            await self._evaluations.finish(p.step if best else p.step - 1)
        header = Header(
            phase=p.phase.name,
            steps_done=p.step,
            version=p.step,
            phase_done=p.done,
            metrics=p.metrics,
            evaluated_at=p.evaluated_at,
        )
        with self._clock("time/save_s"):
            await self._saving.finish()
            seq, learners = self._record.store.newest_seq, self._parts.learners
            captured = await capture(self._job, p.pool, p.order, learners, p.skipped_in_row, copy=not waits)
            self._saving.begin(header, captured, p.phase.save, seq)
            if waits:
                await self._saving.finish()
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


def _places(drawn: Sequence[Drawn]) -> dict[str, tuple[Ref, ...]]:
    """What crosses the boundary: by per-group node, where the groups of the step lie, in draw order."""
    return {node: tuple(d.refs[node] for d in drawn) for node in drawn[0].refs}
