"""The record of a run on disk: the only source for command line, dashboard and resume. See docs/events.md.

Write with ``RunStore``, read with ``RunView``. Loads neither torch nor ray.
"""

from stretto.store.checkpoints import Found, Skipped
from stretto.store.compare import Difference, compare_runs
from stretto.store.describe import CodeState, RunInfo, word_for
from stretto.store.durable import read_json, write_json
from stretto.store.events import (
    SCHEMA,
    AttemptBody,
    Body,
    CheckpointBody,
    EndBody,
    EndStatus,
    ErrorBody,
    EvalBody,
    Event,
    EventKind,
    Example,
    GroupBody,
    NodeBody,
    NodeState,
    NodeTime,
    PhaseBody,
    PublishBody,
    ResumedFrom,
    RunBody,
    SettingBody,
    StepBody,
)
from stretto.store.manifest import PHASES, Checkpoint, FileEntry, Header, Manifest
from stretto.store.reader import Evaluation, RunStatus, RunView, find_run, list_runs, newest_run
from stretto.store.rollouts import RecordedGroup, decode_group, encode_group, read_groups, write_groups
from stretto.store.run import RunSpec, RunStore, read_events

__all__ = [
    "PHASES",
    "SCHEMA",
    "AttemptBody",
    "Body",
    "Checkpoint",
    "CheckpointBody",
    "CodeState",
    "Difference",
    "EndBody",
    "EndStatus",
    "ErrorBody",
    "EvalBody",
    "Evaluation",
    "Event",
    "EventKind",
    "Example",
    "FileEntry",
    "Found",
    "GroupBody",
    "Header",
    "Manifest",
    "NodeBody",
    "NodeState",
    "NodeTime",
    "PhaseBody",
    "PublishBody",
    "RecordedGroup",
    "ResumedFrom",
    "RunBody",
    "RunInfo",
    "RunSpec",
    "RunStatus",
    "RunStore",
    "RunView",
    "SettingBody",
    "Skipped",
    "StepBody",
    "compare_runs",
    "decode_group",
    "encode_group",
    "find_run",
    "list_runs",
    "newest_run",
    "read_events",
    "read_groups",
    "read_json",
    "word_for",
    "write_groups",
    "write_json",
]
