"""How rollouts are made: sampling, and the engine (a union on ``type``)."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stretto.config.base import Section

__all__ = ["Engine", "FakeEngineConfig", "NativeEngineConfig", "SamplingConfig"]


class SamplingConfig(Section):
    """How rollouts are sampled."""

    n: int = Field(default=8, ge=1)
    """Trajectories per group."""
    max_tokens: int = Field(default=16, ge=1)
    """Longest completion, in tokens."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training rollouts."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds one group's completions may take before the run fails, naming them."""


class NativeEngineConfig(Section):
    """Stretto's own engine, for the Llama family, in the run's process."""

    type: Literal["native"] = "native"
    """Which engine."""
    slots: int = Field(default=128, ge=1)
    """Sequences decoded at the same time."""
    max_len: int = Field(default=0, ge=0)
    """Longest sequence (prompt and completion) in tokens; 0: the longest prompt plus sampling.max_tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and KV cache."""
    device: str = "cpu"
    """Where it runs (cpu, cuda, cuda:1)."""
    threads: int = Field(default=1, ge=1)
    """Intra-op threads; ``schedule.deterministic`` needs 1."""


class FakeEngineConfig(Section):
    """Makes up tokens without a Model: for benchmarks and tests of the plumbing."""

    type: Literal["fake"] = "fake"
    """Which engine."""


Engine: TypeAlias = Annotated[NativeEngineConfig | FakeEngineConfig, Field(discriminator="type")]
