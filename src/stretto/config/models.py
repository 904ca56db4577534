"""Sections about weights: the policy and what starts from it."""

from pydantic import Field

from stretto.config.base import Section

__all__ = ["CriticConfig", "ModelConfig"]


class ModelConfig(Section):
    """The policy, and by default every other Model's architecture and start."""

    path: str = "builtin:tiny-llama-char"
    """``builtin:tiny-llama-char``, ``builtin:smollm2-135m-instruct``, a local Hugging Face folder, or a hub id."""
    revision: str | None = None
    """The branch, tag or commit of a hub id; null: its main branch. A run records the commit, and resumes with it."""


class CriticConfig(Section):
    """The critic of ppo: the policy's trunk with a value head."""

    lr: float = Field(default=3e-4, gt=0)
    """Learning rate of the critic."""
