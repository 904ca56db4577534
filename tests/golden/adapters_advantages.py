"""Golden cases of advantages."""

from cases import Adapter

VARIANTS: dict[str, Adapter] = {}
