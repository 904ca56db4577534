"""The data plane of one process: groups are handed over as they are."""

from collections.abc import Sequence

from stretto.roles import Ref
from stretto.types import Group

__all__ = ["LocalPlane"]


class LocalPlane:
    """Implements ``stretto.roles.DataPlane``. A ref holds its groups, and what nobody refers to any more is gone."""

    def put(self, groups: Sequence[Group]) -> Ref:
        """A ref that holds them."""
        return Ref(handle=tuple(groups))

    def get(self, refs: Sequence[Ref]) -> tuple[Group, ...]:
        """What they hold, in their order."""
        return tuple(group for ref in refs for group in ref.handle)

    def free(self, refs: Sequence[Ref]) -> None:
        """Nothing: Python frees what is not referred to."""
