"""Golden cases of losses."""

from cases import Adapter

VARIANTS: dict[str, Adapter] = {}
