"""The base of every section: frozen, unknown keys refused, one documented line per field."""

import re

from pydantic import BaseModel, ConfigDict

__all__ = ["Section", "check_name", "is_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Section(BaseModel):
    """A section of a recipe. The docstring below each field is its help text, with its unit."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )


def is_name(text: str) -> bool:
    """Whether a free text would do as the name of something."""
    return _NAME.fullmatch(text) is not None


def check_name(what: str, name: str) -> None:
    """Raises ValueError for a free name that would not do in ``NAME/metric``; ``what`` begins the sentence."""
    if not is_name(name):
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        raise ValueError(
            f"{what} called {shown!r}. A name has letters, digits, '_' and '-', a letter or digit first, and at most "
            "64 of them."
        )
