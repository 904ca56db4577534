"""Sections about weights: the policy and what starts from it."""

from typing import Literal

from pydantic import Field, model_validator

from stretto.config.base import Section
from stretto.config.by_step import Rate

__all__ = ["CriticConfig", "LoraConfig", "ModelConfig", "TeacherConfig"]


class LoraConfig(Section):
    """Low-rank adapters: they alone are trained and saved, over a base that stays (extra ``stretto[lora]``)."""

    rank: int = Field(default=16, ge=1)
    """Rank of an adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """An adapter's product is scaled by alpha / rank."""
    targets: Literal["auto"] | tuple[str, ...] = "auto"
    """Linear maps that get adapters, by the end of their names (q_proj); auto: all but the head."""
    export: Literal["merged", "adapter"] = "merged"
    """What a run exports: the whole model with adapters merged, or a folder of the adapters for peft."""

    @model_validator(mode="after")
    def _some_targets(self) -> "LoraConfig":
        if not self.targets:
            raise ValueError(
                "model.lora.targets=[] leaves nothing to train. Name linear maps ([q_proj, v_proj]), or set auto."
            )
        return self


class ModelConfig(Section):
    """The policy, and by default every other Model's architecture and start."""

    path: str = "builtin:tiny-llama-char"
    """``builtin:tiny-llama-char``, ``builtin:smollm2-135m-instruct``, a local Hugging Face folder, or a hub id."""
    revision: str | None = None
    """The branch, tag or commit of a hub id; null: its main branch. A run records the commit, and resumes with it."""
    lora: LoraConfig | None = None
    """Train low-rank adapters in place of all weights; null: train all."""


class CriticConfig(Section):
    """The critic of ppo: the policy's trunk with a value head."""

    lr: Rate = Field(default=3e-4, gt=0)
    """Peak learning rate of the critic; backend.lr_warmup and backend.lr_decay scale it."""


class TeacherConfig(Section):
    """A stronger model with the policy's vocabulary, to learn from; its weights stay as they are."""

    path: str
    """A local Hugging Face folder (such as a run's ``model``), a hub id, or a built-in model, as ``model.path``."""
    revision: str | None = None
    """The branch, tag or commit of a hub id; null: its main branch. A run records the commit, and resumes with it."""
