"""The base of every section: frozen, unknown keys refused, one documented line per field."""

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """A section of a recipe. The docstring below each field is its help text, with its unit."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )
