"""The base of every section: frozen, unknown keys refused, one documented line per field."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

__all__ = ["Section", "check_name", "documented", "is_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Section(BaseModel):
    """A section of a recipe. The docstring below each field is its help text, with its unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


@cache
def documented(model: type[Section]) -> Mapping[str, FieldInfo]:
    """The fields of ``model`` by name, with their docstrings as descriptions.

    Pydantic can do this as classes are made; reading every class's source costs a third of importing the sections, and
    only help and errors need it. A class that is not at the top of a source file has none.
    """
    docs = {name: doc for base in reversed(model.__mro__) for name, doc in _own_docs(base)}
    for name, field in model.model_fields.items():
        field.description = field.description or docs.get(name)
    return model.model_fields


def _own_docs(owner: type) -> Iterator[tuple[str, str]]:
    if not issubclass(owner, Section) or owner is Section:
        return
    found = _classes(owner.__module__).get(owner.__qualname__)
    if found is None:
        return
    for field, below in zip(found.body, found.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                yield name, inspect.cleandoc(doc)
            case _:
                pass


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """The classes written at the top of a module."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


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
