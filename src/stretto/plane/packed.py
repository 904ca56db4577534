"""Groups as few long arrays and what is left of them, so that shared memory holds a handful of buffers, not thousands.

The per-token arrays of all trajectories, one after the other; everything else as it is. What is read are views.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stretto.types import Floats, Group, Ints, Masks, Trajectory

__all__ = ["Packed", "pack", "unpack"]

_NO_INTS, _NO_FLOATS, _NO_MASK = np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """Groups without their arrays (``rest``), and those: token ids of prompts and of trajectories, masks, log-probs.
    Row i of trajectories is from ``ends[i - 1]`` to ``ends[i]``, the prompt of group i from ``prompt_ends[i - 1]``."""

    rest: tuple[Any, ...]
    prompts: Ints
    prompt_ends: tuple[int, ...]
    token_ids: Ints
    masks: Masks
    logprobs: Floats
    ends: tuple[int, ...]


def pack(groups: Sequence[Group]) -> Packed:
    """These groups, their arrays copied once."""
    rows = [t for group in groups for t in group.trajectories]
    prompts = [group.prompt.token_ids for group in groups]
    return Packed(
        rest=tuple((g.draw, replace(g.prompt, token_ids=_NO_INTS), tuple(map(_rest, g.trajectories))) for g in groups),
        prompts=_joined(prompts, _NO_INTS),
        prompt_ends=_ends(prompts),
        token_ids=_joined([t.token_ids_T for t in rows], _NO_INTS),
        masks=_joined([t.mask_T for t in rows], _NO_MASK),
        logprobs=_joined([t.logprobs_T for t in rows], _NO_FLOATS),
        ends=_ends([t.token_ids_T for t in rows]),
    )


def unpack(packed: Packed, start: int = 0, count: int | None = None) -> tuple[Group, ...]:
    """``count`` groups (None: all) from ``start`` on; their arrays are views of those in ``packed``."""
    stop = len(packed.rest) if count is None else start + count
    row = sum(len(rest[2]) for rest in packed.rest[:start])
    found: list[Group] = []
    for number in range(start, stop):
        draw, prompt, rests = packed.rest[number]
        first = packed.prompt_ends[number - 1] if number else 0
        trajectories: list[Trajectory] = []
        for rest in rests:
            begin = packed.ends[row - 1] if row else 0
            trajectories.append(_row(packed, begin, packed.ends[row], rest))
            row += 1
        own = packed.prompts[first : packed.prompt_ends[number]]
        found.append(Group(draw=draw, prompt=replace(prompt, token_ids=own), trajectories=tuple(trajectories)))
    return tuple(found)


def _rest(t: Trajectory) -> tuple[Any, ...]:
    return t.key, t.versions, t.finish, t.text, t.temperature, t.rewards, t.reward, t.info


def _row(packed: Packed, begin: int, end: int, rest: tuple[Any, ...]) -> Trajectory:
    key, versions, finish, text, temperature, rewards, reward, info = rest
    return Trajectory(
        key=key,
        token_ids_T=packed.token_ids[begin:end],
        mask_T=packed.masks[begin:end],
        logprobs_T=packed.logprobs[begin:end],
        versions=versions,
        finish=finish,
        text=text,
        temperature=temperature,
        rewards=rewards,
        reward=reward,
        info=info,
    )


def _joined(arrays: Sequence[Any], nothing: Any) -> Any:
    return np.concatenate(arrays) if arrays else nothing


def _ends(arrays: Sequence[Any]) -> tuple[int, ...]:
    return tuple(np.cumsum([len(array) for array in arrays], dtype=np.int64).tolist())
