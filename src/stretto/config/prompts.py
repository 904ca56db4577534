"""Where prompts come from: one section per source, a union on ``type``."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stretto.config.base import Section

__all__ = ["AdditionPrompts", "JsonlPrompts", "Prompts", "PythonPrompts"]


class AdditionPrompts(Section):
    """Problems ``a+b=`` with every pair of 0..max, written out once each."""

    type: Literal["builtin"] = "builtin"
    """Which source."""
    name: Literal["addition"] = "addition"
    """Which built-in task."""
    max: int = Field(default=99, ge=1, le=999)
    """Largest summand."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """Share of the prompts, chosen by seed and uid, kept from every phase of training for evaluation."""


class JsonlPrompts(Section):
    """A file with one JSON object per line."""

    type: Literal["jsonl"] = "jsonl"
    """Which source."""
    path: str
    """The file."""
    prompt: str = "prompt"
    """The key of the prompt: a string, or a list of {role, content} messages."""
    answer: str | None = "answer"
    """The key of the reference answer (``data["answer"]``), or null."""
    uid: str | None = None
    """The key of the unique id; null numbers the lines."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """Share of the prompts, chosen by seed and uid, kept from every phase of training for evaluation."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Token budget of a prompt; a longer one is refused, with its line."""


class PythonPrompts(Section):
    """Python objects given to ``stretto.train``: strings, dicts with ``prompt`` and ``answer``, or Prompts."""

    type: Literal["python"] = "python"
    """Which source."""
    use: str | None = None
    """``module:name`` of an iterable or of a function that returns one; null if an object was passed."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """Share of the prompts, chosen by seed and uid, kept from every phase of training for evaluation."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Token budget of a prompt; a longer one is refused, with its place."""


Prompts: TypeAlias = Annotated[AdditionPrompts | JsonlPrompts | PythonPrompts, Field(discriminator="type")]
