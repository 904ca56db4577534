"""What a run says while it goes: a live region on a terminal, plain lines elsewhere. For command line and Python.

Observers of the run's events, called in the thread that records them; they read nothing else and decide nothing.
``Progress`` folds events into where the run stands, the displays show it.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stretto.api.scores import interval_words, percent, score_words, set_words
from stretto.store import (
    AttemptBody,
    CheckpointBody,
    ErrorBody,
    EvalBody,
    Event,
    GroupBody,
    PhaseBody,
    PromptsBody,
    RunBody,
    SettingBody,
    StepBody,
)

__all__ = [
    "LiveDisplay",
    "Observer",
    "PlainDisplay",
    "Progress",
    "can_draw",
    "duration",
    "percent",
    "shown",
    "watching",
]

Observer: TypeAlias = Callable[[Event], None]

WINDOW = 50
"""Steps over which tokens per second and the time left are measured."""

PAUSES = ("time/evaluate_s", "time/save_s")
"""What happened before a step that is none of its own time."""

TOKENS = "batch/written_tokens"

WORK = ("time/wait_s", "time/train_s", "time/drain_s", "time/publish_s")
"""What a step itself spent: it took no less."""

REASONS = {
    "steps": "",
    "reached": ": its target is reached",
    "missed": ", all it may take, and warmup.until is not reached; the run goes on from there. A lower warmup.lr or "
    "more warmup.max_steps may get there",
    "end of data": ": all its prompts are used",
}
"""What the reasons of a phase's end mean; others are shown as they are."""


@dataclass(slots=True)
class Progress:
    """Where a run stands. ``see`` takes an event and gives back the lines that are worth a line of their own."""

    phase: str = ""
    workflow: str = ""
    steps: int | None = None
    steps_done: int = 0
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    loss: float | None = None
    accuracy: float | None = None
    leading: str = ""
    tokens_per_s: float | None = None
    left_s: float | None = None
    dropped: int = 0
    filtered: int = 0
    skipped: int = 0
    _since_s: float | None = None
    _recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def see(self, event: Event) -> tuple[str, ...]:
        """Take ``event`` in."""
        match event.body:
            case StepBody() as body:
                return self._step(event, body)
            case EvalBody() as body:
                return (self._evaluation(event, body),)
            case PhaseBody() as body:
                return self._phase(event, body)
            case GroupBody(state="filtered"):
                self.filtered += 1
                return ()
            case GroupBody(state="dropped") as body:
                self.dropped += 1
                return (f"group of {body.uid!r} dropped: {body.why}",) if self.dropped == 1 else ()
            case RunBody() as body:
                return (f"run {body.name}, seed {body.seed}",)
            case AttemptBody(resumed_from=source) if source is not None:
                return (f"attempt {event.attempt} goes on from {source.phase} step {source.steps_done}",)
            case PromptsBody() as body:
                return body.lines
            case CheckpointBody() as body:
                return (f"saved {body.path}",)
            case ErrorBody(where="resume") as body:
                return (body.message,)
            case ErrorBody() as body if body.is_evaluation:
                return (f"{body.where} failed, and training goes on: {body.message}",)
            case SettingBody() as body:
                return (f"changed {body.key}: {body.old} -> {body.new}",)
            case _:
                return ()

    def status(self) -> str:
        """One line: phase, step, and the numbers that are known."""
        of = f"/{self.steps}" if self.steps is not None else ""
        return "  ".join([f"{self.phase} step {self.steps_done}{of}", *self.numbers()])

    def numbers(self) -> list[str]:
        """The numbers that are known, each with its name."""
        shown: list[str] = []
        if self.reward is not None:
            parts = ", ".join(f"{name} {value:.3f}" for name, value in self.parts.items())
            shown.append(f"reward {self.reward:.3f}" + (f" ({parts})" if len(self.parts) > 1 else ""))
        elif self.loss is not None:
            shown.append(f"loss {self.loss:.3f}")
        if self.accuracy is not None:
            shown.append(f"{set_words(self.leading)} {percent(self.accuracy)}")
        if self.tokens_per_s is not None:
            shown.append(f"{self.tokens_per_s:,.0f} tokens/s")
        if self.left_s is not None:
            shown.append(f"{duration(self.left_s)} left")
        if self.filtered:
            shown.append(f"{self.filtered} groups filtered")
        if self.dropped:
            shown.append(f"{self.dropped} groups dropped")
        if self.skipped:
            shown.append(f"{self.skipped} updates skipped")
        return shown

    def _evaluation(self, event: Event, body: EvalBody) -> str:
        # Of several sets the status shows one: the held-out share, or the first that was evaluated.
        if body.name == "held_out" or self.leading in ("", body.name):
            self.leading, self.accuracy = body.name, body.accuracy
        reached = f"{event.phase} step {event.step}" if event.phase else "evaluation"
        words = [f"{body.n} problems", interval_words(body.name, body.metrics)]
        known = ", ".join(word for word in words if word)
        more = score_words(body.name, body.metrics)
        return f"{reached}: {set_words(body.name)} accuracy {percent(body.accuracy)} ({known}){more}"

    def _phase(self, event: Event, body: PhaseBody) -> tuple[str, ...]:
        if body.state == "end":
            why = REASONS.get(body.reason, f": {body.reason}" if body.reason else "")
            if body.reason == "steps" and event.phase != "main":
                why = ", all it may take; the run goes on"
            return (f"{event.phase} ended after {self.steps_done} steps{why}",)
        self.phase, self.workflow, self.steps = event.phase or "", body.workflow, body.steps
        self.steps_done = event.step or 0
        self.reward = self.loss = self.tokens_per_s = self.left_s = None
        self._recent.clear()
        self._since_s = event.time_s
        many = "" if body.steps is None else f", {'' if event.phase == 'main' else 'up to '}{body.steps} steps"
        how = f"goes on after step {self.steps_done}" if self.steps_done else "starts"
        return (f"{self.phase} {how} ({body.workflow}{many})",)

    def _step(self, event: Event, body: StepBody) -> tuple[str, ...]:
        metrics = body.metrics
        self.steps_done = (event.step or 0) + 1
        self.reward, self.loss = metrics.get("reward/mean"), metrics.get("loss")
        named = {name.removeprefix("reward/"): value for name, value in metrics.items() if name.startswith("reward/")}
        self.parts = {name: value for name, value in named.items() if name not in ("mean", "min", "max")}
        skipped = int(metrics.get("updates/skipped", 0))
        self.skipped += skipped
        if self._since_s is not None:  # else it is not known when the step began
            pauses, work = (sum(metrics.get(name, 0.0) for name in names) for names in (PAUSES, WORK))
            self._recent.append((max(event.time_s - self._since_s - pauses, work), metrics.get(TOKENS, 0.0)))
        self._since_s = event.time_s
        spent, written = (sum(column) for column in zip(*self._recent, strict=True)) if self._recent else (0.0, 0.0)
        if spent > 0:
            self.tokens_per_s = written / spent if written else None
            if self.steps is not None and self.phase == "main":
                self.left_s = (self.steps - self.steps_done) * spent / len(self._recent)
        return (f"{self.phase} step {self.steps_done}: {skipped} update(s) skipped as not finite",) if skipped else ()


class PlainDisplay:
    """Lines without control characters: one per event worth it, and where the run stands about every ``every_s``."""

    def __init__(self, out: TextIO, every_s: float = 5.0) -> None:
        self._out, self._every_s, self._progress = out, every_s, Progress()
        self._next_s: float | None = None

    def __call__(self, event: Event) -> None:
        lines = list(self._progress.see(event))
        if self._next_s is None:
            self._next_s = event.time_s + self._every_s
        if isinstance(event.body, StepBody) and event.time_s >= self._next_s:
            lines.append(self._progress.status())
            self._next_s = event.time_s + self._every_s
        for line in lines:
            print(line, file=self._out)
        if lines:
            self._out.flush()


class LiveDisplay:
    """A bar and the numbers at the foot of a terminal; events worth a line scroll past above it."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress()
        self._live = Live(self._foot(), console=console, refresh_per_second=4, transient=True)

    def __call__(self, event: Event) -> None:
        for line in self._progress.see(event):
            self._live.console.print(Text(line))
        if isinstance(event.body, (StepBody, EvalBody, PhaseBody)):
            self._live.update(self._foot())

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _foot(self) -> Table | Group:
        p = self._progress
        if not p.phase:
            return Group(Text("starting ...", style="dim"))
        bar = Table.grid(padding=(0, 1))
        total = float(p.steps) if p.steps else None
        of = f"/{p.steps}" if p.steps is not None else ""
        bar.add_row(
            Text(f"{p.phase} · {p.workflow}", style="bold"),
            ProgressBar(total=total, completed=p.steps_done, width=40, pulse=total is None),
            Text(f"{p.steps_done}{of}"),
        )
        return Group(bar, Text("   ".join(p.numbers()), style="cyan"))


@contextmanager
def watching(out: TextIO) -> Iterator[Observer]:
    """The display that suits ``out``, from here to the end of the ``with``."""
    if out.isatty() and os.environ.get("TERM") != "dumb":
        with LiveDisplay(Console(file=out, highlight=False)) as display:
            yield display
    else:
        yield PlainDisplay(out)


@contextmanager
def shown(progress: bool | None, observer: Observer | None) -> Iterator[Observer | None]:
    """What observes a run that Python starts: ``observer``, and a display on standard output.

    ``progress`` None: a display if somebody looks, on a terminal or in a notebook.
    """
    if not (_is_looked_at() if progress is None else progress):
        yield observer
        return
    with watching(sys.stdout) as display:

        def both(event: Event) -> None:
            display(event)
            if observer is not None:
                observer(event)

        yield both


def _is_looked_at() -> bool:
    # A notebook's kernel has ipykernel loaded; its standard output is no terminal, and gets plain lines.
    return sys.stdout.isatty() or "ipykernel" in sys.modules


def can_draw(out: TextIO) -> bool:
    """Whether ``out`` takes the signs of charts; plain ones are drawn otherwise."""
    return (out.encoding or "").lower().replace("-", "") == "utf8"


def duration(seconds: float) -> str:
    """Seconds as people say them: ``8.3s``, ``2m 05s``, ``1h 04m``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
