"""Golden cases of metrics."""

from cases import Adapter

VARIANTS: dict[str, Adapter] = {}
