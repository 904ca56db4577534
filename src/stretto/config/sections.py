"""The sections of a recipe other than algorithms. Choices are unions on ``type``."""

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from stretto.config.base import Section
from stretto.errors import nearest

__all__ = [
    "AdditionPrompts",
    "Backend",
    "Cluster",
    "CriticConfig",
    "Engine",
    "EvalMetric",
    "EvaluateConfig",
    "FakeBackendConfig",
    "FakeEngineConfig",
    "JsonlPrompts",
    "LocalCluster",
    "ModelConfig",
    "NativeEngineConfig",
    "Prompts",
    "PythonPrompts",
    "RewardConfig",
    "SamplingConfig",
    "SaveConfig",
    "ScheduleConfig",
    "TorchBackendConfig",
    "WarmupConfig",
]


EvalMetric = Literal["held_out/accuracy", "held_out/reward"]
"""What an evaluation measures that is to rise: what ``until`` and ``keep_best`` may name."""


class ModelConfig(Section):
    """The policy, and by default every other Model's architecture and start."""

    path: str = "builtin:tiny-llama-char"
    """``builtin:tiny-llama-char``, or a local Hugging Face folder (config.json, safetensors, tokenizer.json)."""


class CriticConfig(Section):
    """The critic of ppo: the policy's trunk with a value head."""

    lr: float = Field(default=3e-4, gt=0)
    """Learning rate of the critic."""


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


class RewardConfig(Section):
    """What judges a trajectory."""

    use: str = "exact_match"
    """``exact_match``, ``module:function``, or ``python:NAME`` when a function was passed to ``stretto.train``."""
    on_error: Literal["fail", "retry", "drop"] = "fail"
    """When a reward raises, times out or returns NaN: fail the run, retry then fail, or drop the group."""
    retries: int = Field(default=2, ge=1)
    """How often ``retry`` tries again."""
    max_dropped: float = Field(default=0.1, gt=0, le=1)
    """Under ``drop``: largest share of judged groups that may be dropped before the run fails."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds one group's rewards may take."""
    workers: int = Field(default=1, ge=0)
    """Reward processes; 0 judges inside the run's process, without a timeout (trusted rewards only)."""


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


class TorchBackendConfig(Section):
    """Training with torch in one process."""

    type: Literal["torch"] = "torch"
    """Which backend."""
    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate of the policy."""
    lr_warmup: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly; the first takes 1 / lr_warmup of it."""
    lr_decay: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from its peak; it would be 0 one step after the last."""
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
    microbatch_tokens: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward; a longer sequence goes alone."""
    device: str = "cpu"
    """Where it runs (cpu, cuda, cuda:1)."""
    threads: int = Field(default=0, ge=0)
    """Intra-op threads; 0: one per physical core, resolved and recorded at the start of the run."""
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
    lr: float = Field(default=1e-5, gt=0)
    """Not used; every backend has one."""
    max_skipped: int = Field(default=3, ge=0)
    """Updates in a row that may be skipped because they are not finite; one more ends the run."""


Backend: TypeAlias = Annotated[TorchBackendConfig | FakeBackendConfig, Field(discriminator="type")]


class ScheduleConfig(Section):
    """How much a step takes, and how far rollout may run ahead of training."""

    groups_per_step: int = Field(default=16, ge=1)
    """Groups one step trains on."""
    max_staleness: Literal[0, 1] = 0
    """Steps a group may lag the policy that trains on it: 0 is on-policy, 1 overlaps rollout with training."""
    deterministic: bool = True
    """Admit whole waves at the window, so that the same seed gives the same bits."""
    max_refills: int = Field(default=10, ge=1)
    """Waves that may be drawn to replace dropped groups of one step before the run fails with their reasons."""


class LocalCluster(Section):
    """This machine, one process."""

    type: Literal["local"] = "local"
    """Which cluster."""


Cluster: TypeAlias = LocalCluster


class EvaluateConfig(Section):
    """Greedy evaluation on the held-out prompts."""

    every: int | None = Field(default=None, ge=1)
    """Steps between evaluations; null: only at start and end."""
    at_start: bool = True
    """Evaluate before the first step."""
    at_end: bool = True
    """Evaluate after the last step."""
    limit: int | None = Field(default=None, ge=1)
    """Evaluate only this many held-out prompts (a fixed choice by seed); null: all."""


class SaveConfig(Section):
    """Checkpoints. The last step is always saved."""

    every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; null: only the last."""
    keep_last: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay."""
    keep_best: EvalMetric | None = None
    """A metric of evaluations: the saved step with the highest value stays too."""


class WarmupConfig(Section):
    """A first phase of the same run, usually supervised; the optimizer starts fresh after it."""

    workflow: str = "sft"
    """Its workflow: a built-in name, YAML file or ``module:function``."""
    until: dict[str, float] = Field(default_factory=dict[str, float])
    """Stop once every named evaluation metric has reached its value, such as ``{held_out/accuracy: 0.5}``."""
    max_steps: int = Field(default=1000, ge=1)
    """Stop after this many steps; the run goes on and says so."""
    lr: float = Field(default=1e-3, gt=0)
    """Its constant learning rate."""
    groups_per_step: int = Field(default=128, ge=1)
    """Groups one step of it trains on."""
    evaluate: EvaluateConfig = EvaluateConfig(every=10, at_start=False, at_end=True, limit=500)
    """Its evaluations; ``until`` looks at them."""

    @model_validator(mode="after")
    def _until_is_measured(self) -> "WarmupConfig":
        known = get_args(EvalMetric)
        unknown = next((name for name in self.until if name not in known), None)
        if unknown is not None:
            raise ValueError(f"warmup.until={self.until}: it cannot wait for {unknown!r}.{nearest(unknown, known)}")
        return self

    @model_validator(mode="after")
    def _until_needs_evaluations(self) -> "WarmupConfig":
        if self.until and self.evaluate.every is None:
            raise ValueError(
                f"warmup.until={self.until} is looked at after evaluations, and warmup.evaluate.every is null. "
                "Set warmup.evaluate.every to a number of steps."
            )
        return self
