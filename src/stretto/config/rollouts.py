"""How rollouts are made: sampling, and the engine (a union on ``type``)."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from stretto.config.base import Section
from stretto.config.by_step import Rate

__all__ = ["Engine", "FakeEngineConfig", "NativeEngineConfig", "SamplingConfig", "check_stops"]


def check_stops(key: str, stops: Sequence[str]) -> None:
    """Raises ValueError for a stop string that would end every completion, or that no decoder ever writes."""
    if not all(stops):
        raise ValueError(f"{key} has an empty text, which would end every completion at once. Leave it out.")
    strange = next((stop for stop in stops if "\ufffd" in stop), None)
    if strange is not None:
        raise ValueError(
            f"{key} has {strange!r}: U+FFFD stands for bytes that are no character yet, and is not looked for. "
            "Give text that the policy can write."
        )


class SamplingConfig(Section):
    """How rollouts are sampled."""

    n: int = Field(default=8, ge=1)
    """Trajectories per group."""
    max_tokens: int = Field(default=16, ge=1)
    """Longest completion, in tokens."""
    temperature: Rate = Field(default=1.0, ge=1e-3)
    """Sampling temperature of training rollouts."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Keep tokens at least this many times as likely as the likeliest; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; the text is cut before them, their tokens are trained."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds one group's completions may take before the run fails, naming them."""

    @model_validator(mode="after")
    def _stops_are_texts(self) -> "SamplingConfig":
        check_stops("sampling.stop", self.stop)
        return self


class NativeEngineConfig(Section):
    """Stretto's own engine, in the run's process."""

    type: Literal["native"] = "native"
    """Which engine."""
    forward: Literal["auto", "native", "hf"] = "auto"
    """Whose code computes the model: Stretto's own (native; llama, qwen2, qwen3), transformers' (hf), or auto."""
    slots: int = Field(default=128, ge=1)
    """Sequences decoded at the same time."""
    max_len: int = Field(default=0, ge=0)
    """Longest sequence (prompt and completion) in tokens; 0: the longest prompt plus sampling.max_tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and KV cache."""
    head_dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the logits' product and its weight; null: as ``dtype``."""
    device: str = "cpu"
    """Where it runs (cpu, cuda, cuda:1)."""
    threads: int = Field(default=1, ge=1)
    """Intra-op threads; ``schedule.deterministic`` needs 1."""
    batch_invariant: bool = True
    """Pad products so that a request's bits do not depend on its company; ``schedule.deterministic`` needs it."""
    prefix_tokens: int | None = Field(default=None, ge=0)
    """Tokens of prompts remembered for later prompts that begin alike, as the next turn of a conversation does; null:
    half of what the KV cache holds with an environment, none without."""

    @model_validator(mode="after")
    def _can_be_had(self) -> "NativeEngineConfig":
        if self.forward == "hf" and self.head_dtype not in (None, self.dtype):
            raise ValueError(
                f"engine.head_dtype={self.head_dtype} needs Stretto's own forward, and engine.forward=hf asks for "
                "transformers'. Leave head_dtype out, or set engine.forward=auto."
            )
        if self.prefix_tokens is not None and 0 < self.prefix_tokens < 32:
            raise ValueError(
                f"engine.prefix_tokens={self.prefix_tokens} would remember nothing: 32 tokens are remembered at a "
                "time. Set it to 0, or to thousands."
            )
        return self


class FakeEngineConfig(Section):
    """Makes up tokens without a Model: for benchmarks and tests of the plumbing."""

    type: Literal["fake"] = "fake"
    """Which engine."""
    delay_s: float = Field(default=0.0, ge=0)
    """Median seconds that a completion takes; 0: none."""
    spread: float = Field(default=0.0, ge=0)
    """Deviation of the logarithm of these seconds, which are lognormal; 0: all take the median."""
    slots: int = Field(default=0, ge=0)
    """Completions under way at the same time; 0: any number."""


Engine: TypeAlias = Annotated[NativeEngineConfig | FakeEngineConfig, Field(discriminator="type")]
