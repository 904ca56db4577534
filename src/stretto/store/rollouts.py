"""Groups as lines of JSON that give back the same bits, and the files of finished groups beside the events.

Token ids are lists; a mask is a string of 0 and 1; log-probs are base64 of their little-endian float32 bytes (exact,
and ten times faster to write than decimals). What is not finite is refused. Owns the format, not which lines count
after a resume (``history``).
"""

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import StoreError
from stretto.store.durable import encode_json
from stretto.store.lines import read_lines
from stretto.types import Group, Key, Message, Prompt, Span, Trajectory

__all__ = [
    "RecordedGroup",
    "attempt_of",
    "decode_group",
    "encode_group",
    "encode_recorded",
    "read_groups",
    "read_rollouts",
    "rollout_path",
    "write_groups",
]

_F4 = np.dtype("<f4")
_DIGITS = bytes.maketrans(b"\0\1", b"01")
_NAME = re.compile(r"(?P<phase>[^@]+)-(?P<attempt>\d+)(?:@(?P<by>[^@]+))?\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedGroup:
    """A finished group with its place in the run. ``step`` is None where it was not known when the group finished.

    ``seq`` is that of the group's event, ``attempt`` the attempt that made it. ``why`` a filter kept it from training;
    empty where none did. What a worker wrote (``by``) knows neither ``seq`` nor step (None): they are in the event.
    """

    phase: str
    attempt: int
    seq: int | None
    step: int | None
    group: Group
    why: str = ""
    by: str = ""


def encode_group(group: Group) -> str:
    """One line of JSON. Raises StoreError, naming the draw, if a log-prob, reward or other number is not finite."""
    trajectories = group.trajectories
    if trajectories and not np.isfinite(np.concatenate([t.logprobs_T for t in trajectories])).all():
        raise StoreError(f"draw {group.draw} has a log-prob that is not finite, which is never recorded.")
    prompt = group.prompt
    try:
        return encode_json(
            {
                "draw": group.draw,
                "prompt": {
                    "uid": prompt.uid,
                    "text": prompt.text,
                    "token_ids": prompt.token_ids.tolist(),
                    "data": prompt.data,
                    "messages": prompt.messages,
                    "media": prompt.media,
                },
                "trajectories": [_trajectory(t) for t in trajectories],
            }
        )
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"draw {group.draw} (prompt {prompt.uid!r}) cannot be recorded: {error}. "
            "Rewards, prompt data and info must be finite numbers, text, lists and mappings."
        ) from error


def _trajectory(trajectory: Trajectory) -> dict[str, object]:
    assert trajectory.logprobs_T.dtype == np.float32, trajectory.logprobs_T.dtype
    key = trajectory.key
    return {
        "key": [key.draw, key.sample, key.part, key.model],
        "token_ids": trajectory.token_ids_T.tolist(),
        "mask": trajectory.mask_T.tobytes().translate(_DIGITS).decode("ascii"),
        "logprobs": b2a_base64(trajectory.logprobs_T.astype(_F4, copy=False).tobytes(), newline=False).decode("ascii"),
        "versions": [[span.version, span.length] for span in trajectory.versions],
        "finish": trajectory.finish,
        "text": trajectory.text,
        "temperature": trajectory.temperature,
        "rewards": trajectory.rewards,
        "reward": trajectory.reward,
        "info": trajectory.info,
    }


def decode_group(line: str | bytes) -> Group:
    """The group of a line, to the bit. Raises StoreError if the line is not one."""
    try:
        return _group(json.loads(line))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"not a recorded group: {type(error).__name__}: {error}.") from error


def _group(raw: Mapping[str, Any]) -> Group:
    prompt = raw["prompt"]
    messages = prompt["messages"]
    return Group(
        draw=raw["draw"],
        prompt=Prompt(
            uid=prompt["uid"],
            text=prompt["text"],
            token_ids=np.array(prompt["token_ids"], np.int32),
            data=prompt["data"],
            messages=None if messages is None else tuple(Message(**message) for message in messages),
            media=tuple(prompt["media"]),
        ),
        trajectories=tuple(_row(row) for row in raw["trajectories"]),
    )


def _row(raw: Mapping[str, Any]) -> Trajectory:
    trajectory = Trajectory(
        key=Key(*raw["key"]),
        token_ids_T=np.array(raw["token_ids"], np.int32),
        mask_T=np.frombuffer(raw["mask"].encode("ascii"), np.uint8) & np.uint8(1),
        logprobs_T=np.frombuffer(a2b_base64(raw["logprobs"], strict_mode=True), _F4).astype(np.float32),
        versions=tuple(Span(*span) for span in raw["versions"]),
        finish=raw["finish"],
        text=raw["text"],
        temperature=raw["temperature"],
        rewards=raw["rewards"],
        reward=raw["reward"],
        info=raw["info"],
    )
    if not len(trajectory.token_ids_T) == len(trajectory.mask_T) == len(trajectory.logprobs_T):
        raise ValueError(f"{trajectory.key} has tokens, mask and log-probs of different lengths")
    return trajectory


def rollout_path(folder: Path, phase: str, attempt: int, by: str = "") -> Path:
    """Where the groups that ``attempt`` finishes in ``phase`` go; those that worker ``by`` writes have a file each."""
    return folder / f"{phase}-{attempt}{f'@{by}' if by else ''}.jsonl"


def attempt_of(path: Path) -> int | None:
    """The attempt whose groups a file holds; None if it is no rollout file."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match["attempt"])


def encode_recorded(seq: int | None, step: int | None, group: Group, why: str = "") -> str:
    """A line of a rollout file; ``why`` a filter kept it from training."""
    seq_known, known = ("null" if number is None else number for number in (seq, step))
    filtered = f'"why":{encode_json(why)},' if why else ""
    return f'{{"seq":{seq_known},"step":{known},{filtered}"group":{encode_group(group)}}}'


def read_rollouts(folder: Path, phase: str | None = None) -> Iterator[RecordedGroup]:
    """Every group in ``folder``, superseded ones too, attempt by attempt. Raises StoreError naming file and line."""
    for path in sorted(folder.glob("*.jsonl"), key=_file_order):
        match = _NAME.fullmatch(path.name)
        if match is None or (phase is not None and match["phase"] != phase):
            continue
        for number, line in read_lines(path):
            try:
                raw: dict[str, Any] = json.loads(line)
                yield RecordedGroup(
                    phase=match["phase"],
                    attempt=int(match["attempt"]),
                    seq=raw["seq"],
                    step=raw["step"],
                    group=_group(raw["group"]),
                    why=raw.get("why", ""),
                    by=match["by"] or "",
                )
            except (ValueError, TypeError, KeyError) as error:
                raise StoreError(f"{path}, line {number}: not a recorded group: {error}.") from error


def _file_order(path: Path) -> tuple[int, str]:
    return attempt_of(path) or 0, path.name


def write_groups(path: Path, groups: Iterable[Group]) -> None:
    """Write groups as lines, for a checkpoint."""
    path.write_text("".join(encode_group(group) + "\n" for group in groups), encoding="ascii")


def read_groups(path: Path) -> tuple[Group, ...]:
    """What ``write_groups`` wrote. Raises StoreError naming file and line."""
    groups: list[Group] = []
    for number, line in read_lines(path):
        try:
            groups.append(decode_group(line))
        except StoreError as error:
            raise StoreError(f"{path}, line {number}: {error}") from error
    return tuple(groups)
