"""What a failure of user code is, as a value: an error is never a number, and what follows from it is a policy's.

Owns how an exception is told; not which policy there is (``judge.py``, ``policy.py``).
"""

import traceback
from dataclasses import dataclass

from stretto.errors import RewardError

__all__ = ["Fault", "fault_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why user code gave nothing. ``sample`` is the sibling it happened on, if one is known.

    ``lost``: its process was late or died, so that the same group might fare otherwise on another day.
    """

    cause: str
    sample: int | None = None
    traceback: str = ""
    lost: bool = False


def fault_of(sample: int | None, error: BaseException) -> Fault:
    """A Fault that names the error and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    what = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}".rstrip(": ") + where
    return Fault(cause=what, sample=sample, traceback="".join(traceback.format_exception(error)))
