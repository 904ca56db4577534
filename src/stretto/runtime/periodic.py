"""Whether work that comes again and again is due: by steps, epochs, minutes, or because somebody asks for it now.

Asked once at every window, which is the only place where a run is in a state that can be saved and evaluated.
"""

from dataclasses import dataclass
from pathlib import Path

from stretto.config.intervals import Interval, Unit, every

__all__ = ["Moment", "Periodic", "due_after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A window: after how many steps, how many passes over the prompts, at what time on a clock that only goes on."""

    step: int
    epochs: float
    time_s: float


def due_after(interval: Interval | None, step: int) -> bool:
    """Whether work that goes by steps is due after ``step`` of them."""
    return interval is not None and every(interval).unit is Unit.STEP and step % int(every(interval).count) == 0


class Periodic:
    """One kind of work, from ``begin`` on. ``file``: where that appears, the work is due, and the file goes."""

    def __init__(self, interval: Interval | None, file: Path, begin: Moment) -> None:
        self._interval, self._file, self._last = interval, file, begin

    def due(self, now: Moment) -> bool:
        """Whether it is due at ``now``. Asked in the order of moments."""
        asked = self._asked()
        return self._comes_round(now) or asked

    def _comes_round(self, now: Moment) -> bool:
        if self._interval is None:
            return False
        period = every(self._interval)
        match period.unit:
            case Unit.STEP:
                return due_after(self._interval, now.step)
            case Unit.EPOCH:
                due = now.epochs // period.count > self._last.epochs // period.count
            case Unit.MINUTE:
                due = now.time_s - self._last.time_s >= 60 * period.count
        if due:
            self._last = now
        return due

    def _asked(self) -> bool:
        """Another may remove the file at the same time; it was there all the same."""
        if not self._file.exists():
            return False
        self._file.unlink(missing_ok=True)
        return True
