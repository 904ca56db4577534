"""The sections of a recipe that are about its course: schedule, cluster, checkpoints, warm-up."""

from typing import Annotated, Literal, TypeAlias

from pydantic import ByteSize, Field, model_validator

from stretto.config.base import Section
from stretto.config.by_step import Whole, most
from stretto.config.evaluation import EvaluateConfig, targets
from stretto.config.intervals import Interval
from stretto.errors import nearest
from stretto.roles import InFlight

__all__ = [
    "Cluster",
    "ExportConfig",
    "LocalCluster",
    "OffloadConfig",
    "PlacementConfig",
    "PublishConfig",
    "RayCluster",
    "SaveConfig",
    "ScheduleConfig",
    "WarmupConfig",
]


class ScheduleConfig(Section):
    """How much a step takes, and how far rollout may run ahead of training."""

    groups_per_step: int = Field(default=16, ge=1)
    """Groups one step trains on."""
    max_staleness: Whole = Field(default=0, ge=0)
    """Steps a token may lag the policy that trains on it: 0 is on-policy, 1 overlaps rollout with training; more needs
    ``in_flight``."""
    in_flight: InFlight = "drain"
    """What becomes of sequences under way when weights change: ``drain`` waits for their end; ``keep`` lets them go on
    with the keys and values that older weights made; ``recompute`` makes those anew first."""
    deterministic: bool = True
    """Admit whole waves at the window, so that the same seed gives the same bits."""
    over_sample: float | None = Field(default=None, gt=1, le=64)
    """Draws under way at a time, in multiples of ``groups_per_step``: a step takes those that end first. null: steps
    take draws in their order."""
    rest: Literal["abort", "carry"] = "abort"
    """What becomes of draws that a step of ``over_sample`` did not wait for: ``abort`` gives them up, ``carry`` lets
    them go on for later steps, none beyond ``max_staleness``."""
    max_refills: int = Field(default=10, ge=1)
    """Draws that may replace dropped groups of one step, in multiples of its groups; beyond, the run fails."""

    @property
    def most_staleness(self) -> int:
        """The largest ``max_staleness`` of any step."""
        return int(most(self.max_staleness))

    @model_validator(mode="after")
    def _in_flight_fits(self) -> "ScheduleConfig":
        lag, how = self.most_staleness, self.in_flight
        if how == "drain" and lag > 1:
            raise ValueError(
                f"schedule.max_staleness={lag} with in_flight=drain is no faster than 1 and staler: all that is under "
                "way is waited for whenever weights change. Set schedule.in_flight=keep (or recompute) and "
                "schedule.deterministic=false, or max_staleness=1."
            )
        if how != "drain" and lag == 0:
            raise ValueError(
                f"schedule.in_flight={how} is about sequences that are under way when weights change, and with "
                "max_staleness=0 there are none. Set schedule.max_staleness=1 or more, or leave in_flight out."
            )
        if how != "drain" and self.deterministic:
            raise ValueError(
                f"schedule.in_flight={how} lets time decide which weights write a token, and schedule.deterministic "
                "promises the same bits. Set schedule.deterministic=false, or in_flight=drain."
            )
        return self

    @model_validator(mode="after")
    def _over_sample_fits(self) -> "ScheduleConfig":
        factor, lag = self.over_sample, self.most_staleness
        if factor is not None and lag != self.max_staleness:
            raise ValueError(
                f"schedule.over_sample={factor:g} needs one max_staleness for all steps: a draw may be taken by any of "
                "several. Set a number, or leave over_sample out."
            )
        if factor is None:
            if self.rest != "abort":
                raise ValueError(
                    f"schedule.rest={self.rest} is about draws that a step does not wait for, and without over_sample "
                    "it waits for all. Set schedule.over_sample=1.5, or leave rest out."
                )
            return self
        if self.deterministic:
            raise ValueError(
                f"schedule.over_sample={factor:g} takes the draws that end first, which time decides, and "
                "schedule.deterministic promises the same bits. Set schedule.deterministic=false."
            )
        if self.rest == "abort" and lag:
            raise ValueError(
                f"schedule.over_sample={factor:g} with rest=abort gives up what a step did not wait for, so nothing "
                f"runs ahead, and schedule.max_staleness={lag} would never be used. Set it to 0, or rest=carry."
            )
        if self.rest == "carry" and (self.in_flight == "drain" or factor > lag + 1):
            raise ValueError(
                f"schedule.over_sample={factor:g} with rest=carry lets draws go on while weights change, for at most "
                f"max_staleness={lag} steps. Set schedule.in_flight=keep (or recompute) and "
                f"max_staleness={max(lag, -int(-factor // 1) - 1)} or more."
            )
        return self


class LocalCluster(Section):
    """This machine, one process."""

    type: Literal["local"] = "local"
    """Which cluster."""


class RayCluster(Section):
    """Workers in processes of their own, as actors of Ray: on this machine or on many."""

    type: Literal["ray"] = "ray"
    """Which cluster."""
    address: str | None = None
    """A Ray cluster to join (host:port, or auto), which stays up; null: one on this machine is started for the run, and
    goes away with it."""
    device: str = Field(default="cpu", min_length=1)
    """What each worker has one of: gpu, a resource of the cluster by its name, or cpu: nothing that is counted."""
    start_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds within which the cluster answers, every worker is up, and then has opened what it holds; or the run fails
    with the reason."""
    heartbeat_s: float = Field(default=5.0, gt=0)
    """Seconds between questions to every worker whether it is there, and what it does."""
    stall_s: float = Field(default=30.0, gt=0)
    """Seconds without an answer after which a worker is taken for lost, and ended."""
    restarts: int = Field(default=3, ge=0)
    """How often a run goes on by itself after a learner is lost, from its newest checkpoint, and how often each roller
    is started again."""
    object_store: Annotated[ByteSize, Field(gt=0)] | None = None
    """Shared memory for what workers hand over, of a cluster that is started here; null: as Ray chooses."""


Cluster: TypeAlias = Annotated[LocalCluster | RayCluster, Field(discriminator="type")]


class PlacementConfig(Section):
    """Which workers there are, where the cluster is one of several processes."""

    learners: int = Field(default=1, ge=1)
    """Ranks that train, a device each. What they train is cut into shards, one a rank (FSDP2)."""
    replicas: int = Field(default=1, ge=1)
    """Whole copies of what is trained, each cut into learners / replicas shards (HSDP)."""
    rollers: int = Field(default=1, ge=1)
    """Rollout workers, an engine each."""

    @model_validator(mode="after")
    def _copies_are_whole(self) -> "PlacementConfig":
        if self.learners % self.replicas:
            raise ValueError(
                f"placement.replicas={self.replicas} copies cannot be made of placement.learners={self.learners} ranks "
                "with equally many each. Set learners to a multiple of replicas."
            )
        return self


class OffloadConfig(Section):
    """Engine and trainer on one device that has not the memory for both: each gives up some while the other computes.

    Needs ``schedule.max_staleness`` 0, where they take turns anyway.
    """

    engine: Literal["none", "kv", "weights"] = "none"
    """What the engine gives up while the trainer trains: nothing, its KV cache, or its weights as well."""
    trainer: Literal["none", "optimizer", "weights"] = "none"
    """What the trainer gives up while the engine samples: nothing, the optimizer's state, or weights as well."""
    to: Literal["memory", "disk"] = "memory"
    """Where the trainer's part goes: the host's memory, or the disk (a file in TMPDIR without a name, which goes with
    the process)."""

    @property
    def acts(self) -> bool:
        """Whether anything is given up."""
        return self.engine != "none" or self.trainer != "none"


class PublishConfig(Section):
    """New weights for the engine: every window publishes some. How it is proved that they arrived."""

    check_weights: Literal["once", "always", "off"] = "once"
    """When the engine's weights are cleared before they are sent, and its log-probs of fresh samples compared with the
    trainer's: at the first publication of an attempt, at every one, or never."""
    clear: tuple[str, ...] = ("*",)
    """Which weights are cleared, by patterns of their names."""
    tolerance: float | None = Field(default=None, gt=0)
    """Largest mean difference of log-probs in nats; null: 0.001, or 0.3 with engine.dtype=bfloat16."""


class SaveConfig(Section):
    """Checkpoints. The last step is always saved."""

    every: Interval | None = None
    """Steps between checkpoints, or a text such as ``10 minutes`` or ``0.5 epochs``; null: only the last."""
    keep_last: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay."""
    keep_best: str | None = None
    """A metric of evaluations, such as held_out/accuracy: the saved step with the highest value stays too."""
    background: bool = True
    """Whether training goes on while a checkpoint is written, which takes memory for a copy of what it holds."""


class ExportConfig(Section):
    """The policy as a Hugging Face folder while the run goes on: ``exports/step-N`` in the run's folder. What it has in
    the end is always exported, as ``model``."""

    every: Interval | None = None
    """Steps of the main phase between exports, or a text such as ``10 minutes`` or ``0.5 epochs``; null: only when the
    file ``RUN/export.now`` appears."""
    keep_last: int | None = Field(default=None, ge=1)
    """How many of the newest stay; null: all."""


class WarmupConfig(Section):
    """A first phase of the same run, usually supervised; the optimizer starts fresh after it."""

    workflow: str = "sft"
    """An algorithm at its vetted settings, by its type, or a workflow by its YAML file or ``module:function``."""
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
        known = tuple(targets(self.evaluate))
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
