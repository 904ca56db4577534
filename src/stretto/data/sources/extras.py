"""Packages of the extras: imported when a source needs them, and named with the extra where they are missing."""

from typing import Any

from stretto.errors import ConfigError
from stretto.imports import import_named

__all__ = ["from_extra"]


def from_extra(module: str, extra: str, kind: str) -> Any:
    """The module. Any, because these packages carry no usable types. ``kind`` is the ``prompts.type`` that asks."""
    try:
        return import_named(module)
    except ImportError as error:
        raise ConfigError(
            f"prompts.type={kind} needs the package {module.partition('.')[0]}, which cannot be imported ({error}). "
            f"Install it: pip install 'stretto[{extra}]'."
        ) from error
