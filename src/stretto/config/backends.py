"""What trains: a union on ``type``."""

from typing import Annotated, Literal, TypeAlias

from pydantic import ByteSize, Field, model_validator

from stretto.config.base import Section
from stretto.config.by_step import Rate

__all__ = ["Backend", "FakeBackendConfig", "TorchBackendConfig"]


class TorchBackendConfig(Section):
    """Training with torch in one process."""

    type: Literal["torch"] = "torch"
    """Which backend."""
    lr: Rate = Field(default=1e-5, gt=0)
    """Peak learning rate of the policy; lr_warmup and lr_decay scale it, also where it is given by step."""
    lr_warmup: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly; the first takes 1 / lr_warmup of it."""
    lr_decay: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from its peak; it would be 0 one step after the last."""
    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """What moves the weights; adamw8bit keeps AdamW's moments in a quarter of the memory."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger norm are scaled down to it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of forward and backward; bfloat16 is autocast, master weights stay float32."""
    head_dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the products that make logits; null: as dtype. float32 under bfloat16 narrows the log-prob gap."""
    microbatch_tokens: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward; groups are not cut where they fit, and a longer sequence goes alone."""
    microbatch_memory: Annotated[ByteSize, Field(gt=0)] | None = None
    """Memory of one forward and backward beside weights and gradients (2GiB): fewer tokens where it is estimated to
    take more; null: no limit but microbatch_tokens."""
    activation_checkpointing: bool = False
    """Keep of every layer its inputs alone, and compute it again in the backward pass: less memory, more time."""
    device: str = "cpu"
    """Where it runs (cpu, cuda, cuda:1)."""
    threads: int = Field(default=0, ge=0)
    """Intra-op threads; 0: one per core, less the engine's at ``max_staleness`` 1; recorded at the start of the run."""
    max_skipped: int = Field(default=3, ge=0)
    """Updates in a row that may be skipped because they are not finite; one more ends the run."""

    @model_validator(mode="after")
    def _betas_decay(self) -> "TorchBackendConfig":
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"backend.betas={list(self.betas)} cannot be used: both are 0 or more and below 1.")
        return self


class FakeBackendConfig(Section):
    """Trains nothing: for benchmarks and tests of the plumbing."""

    type: Literal["fake"] = "fake"
    """Which backend."""
    lr: Rate = Field(default=1e-5, gt=0)
    """Not used; every backend has one."""
    max_skipped: int = Field(default=3, ge=0)
    """Updates in a row that may be skipped because they are not finite; one more ends the run."""
    step_s: float = Field(default=0.0, ge=0)
    """Seconds that an update takes."""


Backend: TypeAlias = Annotated[TorchBackendConfig | FakeBackendConfig, Field(discriminator="type")]
