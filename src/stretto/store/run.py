"""RunStore: the one writer of a run's record.

    runs/NAME/
      run.json        what the run is, once (describe)
      events.jsonl    what happened, appended (events, lines)
      rollouts/       finished groups, one file per phase and attempt (rollouts)
      checkpoints/    (checkpoints, manifest)
      run.lock        held while a process writes the run (lock)

Owns creation, resumption, order and durability. Safe to call from several threads. Readers are in ``reader``.
"""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import TracebackType

from stretto.errors import ConfigError, ResumeError, StoreError, noting
from stretto.store.checkpoints import Found, clean, newest, prune, save, set_aside
from stretto.store.describe import RunInfo, describe, read_info, word_for, write_info
from stretto.store.events import (
    AttemptBody,
    Body,
    CheckpointBody,
    EndBody,
    EndStatus,
    Event,
    GroupBody,
    ResumedFrom,
    RunBody,
    decode_event,
    encode_event,
)
from stretto.store.lines import LineFile, cut_torn_line, read_lines
from stretto.store.lock import RunLock
from stretto.store.manifest import Checkpoint, Header
from stretto.store.rollouts import attempt_of, encode_recorded, rollout_path
from stretto.types import Group, Json

__all__ = ["RunSpec", "RunStore", "read_events"]

# Between steps a long phase must still be seen by readers; these bound what they wait for.
_FLUSH_CHARS = 1 << 18
_FLUSH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run to create: under ``name``, or under ``hint`` or the first free ``hint-2``, ``hint-3`` if that is None.

    ``begin`` is a checkpoint of run ``parent``, which the run goes on from: a copy is its first.
    """

    hint: str
    config: Mapping[str, Json]
    seed: int
    steps: int | None
    given: tuple[str, ...] = ()
    name: str | None = None
    parent: str | None = None
    begin: Checkpoint | None = None
    threads: int | None = None


class RunStore:
    """The record of one run, open for writing by this process. Made by ``create`` and ``open``; a context manager.

    ``found`` is the checkpoint this attempt starts from and those that were skipped for it; say the latter.
    """

    def __init__(self, path: Path, info: RunInfo, lock: RunLock, found: Found) -> None:
        self.path = path
        self.info = info
        self.found = found
        self._lock = lock
        self._mutex = threading.RLock()
        self._subscribers: list[Callable[[Event], None]] = []
        self._wall_start = time.monotonic()
        self._cpu_start = _cpu_s()
        cut_torn_line(path / "events.jsonl")
        past = list(read_events(path / "events.jsonl"))
        self.attempt = 1 + max([e.attempt for e in past] + list(_rollout_attempts(path)), default=0)
        taken = found.taken
        self._next_seq = 1 + max(past[-1].seq if past else -1, taken.manifest.seq if taken else -1)
        self._events = LineFile(path / "events.jsonl")
        self._rollouts: dict[str, LineFile] = {}
        self._flushed_s = time.time()
        self._closed = False
        try:
            if not past:
                self.event(RunBody(name=info.name, seed=info.seed, steps=info.steps))
            self.event(
                AttemptBody(
                    attempt=self.attempt,
                    pid=os.getpid(),
                    host=socket.gethostname(),
                    resumed_from=None if taken is None else _resumed_from(taken),
                )
            )
            self.flush()
        except BaseException as error:
            with noting(error, "closing the record"):
                self._events.close()
            raise

    @classmethod
    def create(cls, runs_dir: Path, spec: RunSpec) -> "RunStore":
        """A new run. Raises ConfigError if ``spec.name`` exists already, StoreError if the disk refuses."""
        if runs_dir.exists() and not runs_dir.is_dir():
            raise ConfigError(f"runs_dir={runs_dir} is no folder, and runs are folders in it. Set it to one.")
        path: Path | None = None
        lock: RunLock | None = None
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            path = _new_folder(runs_dir, spec)
            lock = RunLock(path / "run.lock")
            for folder in ("rollouts", "checkpoints"):
                (path / folder).mkdir()
            if spec.begin is not None:
                shutil.copytree(spec.begin.path, path / "checkpoints" / spec.begin.path.name)
        except OSError as error:
            if lock is not None:
                lock.release()
            if path is not None:  # nothing but what was made here is in it
                shutil.rmtree(path, ignore_errors=True)
            raise StoreError(
                f"no run can be created in {runs_dir}: {_cause(error)}. "
                "Free space, or set runs_dir to a folder that can be written."
            ) from error
        info = describe(path.name, spec.config, seed=spec.seed, steps=spec.steps)
        try:
            write_info(path / "run.json", replace(info, given=spec.given, parent=spec.parent, threads=spec.threads))
            return cls(path, read_info(path / "run.json"), lock, newest(path / "checkpoints"))
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path, check: Callable[[Checkpoint], object] = lambda _: None) -> "RunStore":
        """A further attempt at a run, from its newest whole checkpoint (``found``), or from the start if it has none.

        ``check`` may refuse the checkpoint by raising, before anything is changed.

        Raises ResumeError if there is no run, or a live process writes it (naming the pid). Damaged newer checkpoints
        are set aside.
        """
        if not (path / "run.json").is_file():
            raise ResumeError(f"{path} is not a run: it has no run.json. `stretto runs list` shows what there is.")
        lock = RunLock(path / "run.lock")
        try:
            info = read_info(path / "run.json")
            clean(path / "checkpoints")
            found = newest(path / "checkpoints")
            if found.taken is not None:
                check(found.taken)
            for skipped in found.skipped:
                set_aside(skipped)
            return cls(path, info, lock, found)
        except BaseException:
            lock.release()
            raise

    @property
    def wall_s(self) -> float:
        """Seconds since this attempt began."""
        return time.monotonic() - self._wall_start

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process and its ended children since this attempt began."""
        return _cpu_s() - self._cpu_start

    def subscribe(self, callback: Callable[[Event], None]) -> None:
        """Call ``callback`` with every further event, in order, in the thread that records it. It may raise."""
        self._subscribers.append(callback)

    def event(
        self, body: Body, *, phase: str | None = None, step: int | None = None, version: int | None = None
    ) -> Event:
        """Record what happened. Buffered; ``flush`` at the end of a step. ``step`` as in ``Event``."""
        with self._mutex:
            assert not self._closed, "the run is closed"
            event = Event(
                seq=self._next_seq,
                time_s=round(time.time(), 6),
                attempt=self.attempt,
                phase=phase,
                step=step,
                version=version,
                body=body,
            )
            self._events.append(encode_event(event))
            self._next_seq += 1
            if self._events.buffered > _FLUSH_CHARS or event.time_s - self._flushed_s > _FLUSH_S:
                self.flush()
            for callback in self._subscribers:
                callback(event)
            return event

    def group(
        self,
        body: GroupBody,
        group: Group | None = None,
        *,
        phase: str,
        step: int | None = None,
        version: int | None = None,
    ) -> Event:
        """Record a group that is finished or filtered (given, and kept in ``rollouts/``, unless a worker has done that)
        or dropped (None).

        ``step`` if known.
        """
        assert (group is None) == (body.state == "dropped" or bool(body.by)), (body.draw, body.state)
        with self._mutex:
            if group is not None:
                self._rollout_file(phase).append(encode_recorded(self._next_seq, step, group, body.why))
            return self.event(body, phase=phase, step=step, version=version)

    @property
    def newest_seq(self) -> int:
        """The number of the newest event."""
        with self._mutex:
            return self._next_seq - 1

    def checkpoint(
        self,
        header: Header,
        write: Callable[[Path], None],
        *,
        keep_last: int,
        keep_best: str | None = None,
        seq: int | None = None,
    ) -> Checkpoint:
        """Save what ``write`` puts into the folder it is given, then remove what need not be kept, then record it.

        ``seq``: the newest event that belongs to the state, if more may have been recorded since; None: all belong to
        it but groups, whose draws are made again after a resume. Raises StoreError as ``checkpoints.save``.
        """
        folder = self.path / "checkpoints"
        start = time.perf_counter()
        saved = save(folder, header, write, lambda: self._make_durable(seq))
        prune(folder, keep_last=keep_last, keep_best=keep_best)
        self.event(
            CheckpointBody(
                path=f"checkpoints/{saved.path.name}",
                bytes=saved.manifest.total_bytes,
                duration_s=time.perf_counter() - start,
                metrics=header.metrics,
            ),
            phase=header.phase,
            step=header.steps_done,
            version=header.version,
        )
        self.flush()
        return saved

    def end(self, status: EndStatus, reason: str = "") -> Event:
        """Record the end of this attempt."""
        event = self.event(EndBody(status=status, wall_s=self.wall_s, cpu_s=self.cpu_s, reason=reason))
        self.flush()
        return event

    def flush(self) -> None:
        """Hand everything recorded to the operating system. Groups first: an event never speaks of a missing one."""
        with self._mutex:
            for file in self._rollouts.values():
                file.flush()
            self._events.flush()
            self._flushed_s = time.time()

    def close(self) -> None:
        """Flush, close the files, let go of the lock. Idempotent; the lock is released even if the flush raises."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            try:
                for file in self._rollouts.values():
                    file.close()
                self._events.close()
            finally:
                self._lock.release()

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with nullcontext() if error is None else noting(error, "closing the record"):
            self.close()

    def _make_durable(self, seq: int | None) -> int:
        """Bring the log to disk, up to ``seq`` at least; None: all of it, whose newest ``seq`` is given. A checkpoint
        never outlives the records before it."""
        with self._mutex:
            for file in self._rollouts.values():
                file.sync()
            self._events.sync()
            return self._next_seq - 1 if seq is None else seq

    def _rollout_file(self, phase: str) -> LineFile:
        file = self._rollouts.get(phase)
        if file is None:
            file = self._rollouts[phase] = LineFile(rollout_path(self.path / "rollouts", phase, self.attempt))
        return file


def read_events(path: Path) -> Iterator[Event]:
    """Every event in the file, superseded ones included. Raises StoreError naming file and line of a broken one."""
    for number, line in read_lines(path):
        try:
            yield decode_event(line)
        except StoreError as error:
            raise StoreError(f"{path}, line {number}: {error}") from error


def _new_folder(runs_dir: Path, spec: RunSpec) -> Path:
    """Make the folder of the run. ``mkdir`` either makes it or says that another has: no race between processes."""
    if spec.name is not None:
        path = runs_dir / spec.name
        try:
            path.mkdir()
        except FileExistsError:
            raise ConfigError(_taken(path)) from None
        return path
    for number in count(1):
        path = runs_dir / (spec.hint if number == 1 else f"{spec.hint}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable: the numbers do not end")


def _cause(error: OSError) -> str:
    """Why the system refused. A copied folder tells it for every file, without a number."""
    return f"{error.strerror} ({error.filename})" if error.strerror else str(error)


def _taken(path: Path) -> str:
    """What to do about a name that is in use."""
    if (path / "run.json").is_file():
        return (
            f"run {path.name!r} exists already in {path.parent}. Go on with it by `stretto resume {word_for(path)}`, "
            "or choose another name."
        )
    return (
        f"{path} exists already and is not a run (it has no run.json). Remove it if it is what a killed start left, "
        "or choose another name."
    )


def _resumed_from(checkpoint: Checkpoint) -> ResumedFrom:
    header = checkpoint.header
    return ResumedFrom(phase=header.phase, steps_done=header.steps_done, seq=checkpoint.manifest.seq)


def _rollout_attempts(path: Path) -> Iterator[int]:
    """The attempts that left rollouts; a torn log may know of fewer."""
    for file in (path / "rollouts").glob("*-*.jsonl"):
        if (attempt := attempt_of(file)) is not None:
            yield attempt


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
