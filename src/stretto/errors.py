"""The errors Stretto raises, as one tree. What a user did is a ``ValueError``; what broke while running is not.

    StrettoError
    ├── UserError (ValueError)      exit 2: something the user gave cannot work
    │   ├── ConfigError             a recipe, key, override or command-line argument
    │   ├── GraphError              a workflow: its nodes, edges, types or roles
    │   ├── DataError               a prompt source, a data file, a tokenizer, a model folder
    │   └── ResumeError             a run that cannot be resumed as asked
    └── RunError                    exit 3: the run failed after it started
        ├── NodeError               a node of a workflow raised, or gave something else than it says
        ├── RewardError             a reward or environment raised, timed out or returned no number
        ├── EngineError             a rollout engine failed, stalled or holds other weights than published
        ├── TrainError              not-finite updates, a backend that failed
        ├── StoreError              the run record or a checkpoint cannot be written or read
        ├── PoolError               groups cannot be admitted, filtered or refilled
        └── WorkerLost              a process of the run died or answers no more
    Interrupted                     exit 130: stopped by a signal, state saved

Every message is a sentence that says what is wrong, what came and what to do.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from difflib import get_close_matches

__all__ = [
    "ConfigError",
    "DataError",
    "EngineError",
    "GraphError",
    "Interrupted",
    "NodeError",
    "PoolError",
    "ResumeError",
    "RewardError",
    "RunError",
    "StoreError",
    "StrettoError",
    "TrainError",
    "UserError",
    "WorkerLost",
    "nearest",
    "noting",
]


class StrettoError(Exception):
    """Base of all errors that Stretto raises on purpose. ``exit_status`` is what a command exits with."""

    exit_status: int = 3


class UserError(StrettoError, ValueError):
    """Something the user gave cannot work; nothing was started or changed."""

    exit_status = 2


class ConfigError(UserError):
    """A recipe, a key, an override or an argument is wrong."""


class GraphError(UserError):
    """A workflow is not a valid graph."""


class DataError(UserError):
    """A prompt source, data file, tokenizer or model folder cannot be used."""


class ResumeError(UserError):
    """A run cannot be resumed as asked."""


class RunError(StrettoError):
    """The run failed after it started. What was finished is saved."""


class NodeError(RunError):
    """A node of a workflow raised, or gave something else than it says."""


class RewardError(RunError):
    """A reward raised, timed out or returned something that is not a finite number."""


class EngineError(RunError):
    """A rollout engine failed or stalled, or holds other weights than were published."""


class TrainError(RunError):
    """A training backend failed, or too many updates were not finite."""


class StoreError(RunError):
    """The run record or a checkpoint could not be written or read."""


class PoolError(RunError):
    """Groups could not be admitted, filtered or refilled."""


class WorkerLost(RunError):
    """A worker process died, or did not answer any more and was ended. What it did is done again."""


class Interrupted(StrettoError):
    """A signal stopped the run; its state was saved."""

    exit_status = 130


@contextmanager
def noting(first: BaseException, what: str) -> Generator[None]:
    """For what is still to be done after ``first``: if it fails too, that is a note of ``first``, which stays on top.

    A named failure policy: nothing else is caught and kept.
    """
    try:
        yield
    except Exception as later:  # noqa: BLE001 - it is told, beside what came first
        first.add_note(f"{what[0].upper()}{what[1:]} failed as well: {type(later).__name__}: {later}")


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the known name nearest to ``name``, else a list of what is known (or nothing)."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    swapped = [match for match in close if sorted(match) == sorted(name)]  # the same letters in another order
    if close:
        return f" Did you mean {(swapped or close)[0]!r}?"
    return f" Known: {', '.join(names)}." if names else ""
