"""The data plane over Ray's object store: groups lie in shared memory of the host where they were made.

    roller   put, put, put ── gathered() ──▶ one object of the store, which the driver owns and never opens
    driver   place(refs, object)         ──▶ refs, a few numbers each, to whoever trains
    learner  get(refs)                   ──▶ the same memory mapped; on another host a copy, once for all of its workers

What is returned to the driver lives as long as the driver refers to it, also if the process that made it dies. Ray
sends small objects inside messages, which would take them through the driver: ``Gathered`` is never small.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import ObjectLostError

from stretto.errors import PoolError
from stretto.plane.packed import Packed, pack, unpack
from stretto.roles import Ref
from stretto.types import Group

__all__ = ["Gathered", "GatheringPlane", "RayPlane"]

INLINE_BYTES = 100 * 1024
"""Objects up to this size travel inside messages (Ray's max_direct_call_object_size)."""


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Groups that go into the store as one object, larger than what Ray sends inside messages."""

    packed: Packed
    size: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(INLINE_BYTES + 1, np.uint8))


@dataclass(slots=True, eq=False)
class _Place:
    """``count`` groups of an object of the store, from ``start`` on; None: it is not known yet, or was freed."""

    start: int
    count: int
    object: Any = None


class RayPlane:
    """Implements ``stretto.roles.DataPlane`` for whoever drives or trains."""

    def put(self, groups: Sequence[Group]) -> Ref:
        """Into this host's store, as long as this process lives."""
        return Ref(handle=_Place(0, len(groups), ray.put(Gathered(pack(groups)))))

    def place(self, refs: Iterable[Ref], object: Any) -> None:
        """Say in which object of the store the groups of ``refs`` lie."""
        for ref in refs:
            cast(_Place, ref.handle).object = object

    def get(self, refs: Sequence[Ref]) -> tuple[Group, ...]:
        """From wherever they lie, in the order of ``refs``. PoolError if the host they lay on is gone."""
        places = [cast(_Place, ref.handle) for ref in refs]
        assert all(place.object is not None for place in places), "what was freed is asked for"
        objects = list(dict.fromkeys(place.object for place in places))
        try:
            found = dict(zip(objects, cast("list[Gathered]", ray.get(objects)), strict=True))
        except ObjectLostError as error:
            raise PoolError(
                f"groups that were finished are lost with the host that held them: {error}. Resume the run: their "
                "draws are made again."
            ) from error
        return tuple(
            group for place in places for group in unpack(found[place.object].packed, place.start, place.count)
        )

    def free(self, refs: Sequence[Ref]) -> None:
        """Forget where they lie; Ray frees an object that nobody refers to."""
        for ref in refs:
            cast(_Place, ref.handle).object = None


class GatheringPlane:
    """Implements ``DataPlane`` where groups are made: what is put waits here for ``gathered``. A step has many small
    groups, and each object of the store costs messages."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def put(self, groups: Sequence[Group]) -> Ref:
        """Keep them; the ref says where in the object they will lie."""
        start = len(self._groups)
        self._groups += groups
        return Ref(handle=_Place(start, len(groups)))

    def gathered(self) -> Gathered | None:
        """What was put since the last time, to be returned as an object of its own; None if nothing was."""
        groups, self._groups = self._groups, []
        return Gathered(pack(groups)) if groups else None

    def get(self, refs: Sequence[Ref]) -> tuple[Group, ...]:
        """Nobody reads where groups are made."""
        raise AssertionError("groups are read by those that train")

    def free(self, refs: Sequence[Ref]) -> None:
        """What is here goes to the store as a whole."""
