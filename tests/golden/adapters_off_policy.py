"""Golden cases of off_policy."""

from cases import Adapter

VARIANTS: dict[str, Adapter] = {}
