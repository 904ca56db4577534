"""The reward ``json_schema``: the text, or the last fenced block in it, is JSON that fits a schema."""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from stretto.environments.rewards.builtin.answers import refuse_without
from stretto.errors import ConfigError
from stretto.types import Prompt, Trajectory

__all__ = ["JsonSchema"]

_FENCE = re.compile(r"```[ \t]*\w*[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema:
    """1 if the text parses as JSON and validates, else 0. Needs the extra [tasks].

    Exactly one of ``schema`` (inline) and ``file`` (a JSON file). ``fenced``: where the text has a fenced block, the
    last one is judged. References to other documents are not followed.
    """

    schema: dict[str, Any] | bool | None = None
    file: str | None = None
    fenced: bool = True

    def __post_init__(self) -> None:
        refuse_without("jsonschema", "tasks", "json_schema")
        if (self.schema is None) == (self.file is None):
            raise ConfigError("the reward 'json_schema' takes exactly one of schema (inline) and file (a JSON file).")
        if self.file is not None:
            # Read once: what the run judges by does not change while it lasts.
            object.__setattr__(self, "schema", _read(Path(self.file)))
            object.__setattr__(self, "file", None)
        _validator(json.dumps(self.schema))

    def __call__(self, prompt: Prompt, trajectory: Trajectory) -> float:
        blocks = _FENCE.findall(trajectory.text) if self.fenced else []
        try:
            value = json.loads(blocks[-1] if blocks else trajectory.text, parse_constant=_refuse_constant)
            return float(bool(_validator(json.dumps(self.schema)).is_valid(value)))
        except (ValueError, RecursionError):  # no JSON, or nested deeper than anything that could be meant
            return 0.0

    def warm(self) -> None:
        """Import jsonschema and make the validator."""
        _validator(json.dumps(self.schema))


@lru_cache(maxsize=16)
def _validator(schema: str) -> Any:
    # An extra: only who judges by a schema needs it.
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    loaded = json.loads(schema)
    kind = validator_for(loaded)
    try:
        kind.check_schema(loaded)
    except SchemaError as error:
        raise ConfigError(f"the reward 'json_schema' has a schema that is none: {error.message}.") from error
    # An empty registry, because the default one would fetch what a schema refers to from the network.
    return kind(loaded, registry=Registry())


def _read(path: Path) -> object:
    try:
        schema: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the schema file {path} of the reward 'json_schema' cannot be read ({error}).") from error
    except ValueError as error:
        raise ConfigError(f"the schema file {path} of the reward 'json_schema' is no JSON ({error}).") from error
    if not isinstance(schema, dict | bool):
        kind = type(schema).__name__
        raise ConfigError(f"the schema file {path} of the reward 'json_schema' holds a {kind}. It has to be an object.")
    return cast(object, schema)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
