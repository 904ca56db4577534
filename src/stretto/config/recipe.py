"""The recipe: everything a run is, in one frozen value. Cross-field checks that need no device are here."""

from pydantic import Field, model_validator

from stretto.config.algorithms import Algorithm, DapoConfig, GrpoConfig, PolicyGradient, RatioFields, UpdateFields
from stretto.config.backends import Backend, FakeBackendConfig, TorchBackendConfig
from stretto.config.base import Section
from stretto.config.debugging import DebugConfig
from stretto.config.environments import EnvironmentConfig
from stretto.config.evaluation import HELD_OUT, EvaluateConfig, targets
from stretto.config.filters import FilterConfig
from stretto.config.models import CriticConfig, ModelConfig, TeacherConfig
from stretto.config.orders import Order, ShuffledOrder, check_order
from stretto.config.prompts import AdditionPrompts, Prompts
from stretto.config.rewards import RewardConfig
from stretto.config.rollouts import Engine, FakeEngineConfig, NativeEngineConfig, SamplingConfig
from stretto.config.sections import (
    Cluster,
    ExportConfig,
    LocalCluster,
    OffloadConfig,
    PlacementConfig,
    PublishConfig,
    SaveConfig,
    ScheduleConfig,
    WarmupConfig,
)
from stretto.errors import nearest

__all__ = ["Recipe"]


class Recipe(Section):
    """A run, whole: what is trained, on what, how, where, and what is kept."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """The run's folder under ``runs_dir``; null: a fresh one from the recipe's name."""
    runs_dir: str = "runs"
    """Where runs are kept."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the order of the data, every sampled token and every initial weight that is not loaded."""
    steps: int | None = Field(default=None, ge=1)
    """Steps of the main phase; null: as many as ``epochs`` give."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training prompts; null: as many as ``steps`` take. With both, the first reached ends the run."""
    model: ModelConfig = ModelConfig()
    """The policy."""
    critic: CriticConfig = CriticConfig()
    """The critic, where the workflow has one."""
    teacher: TeacherConfig | None = None
    """Whom the policy learns from, where the workflow has a teacher (algorithm.type=distill)."""
    warmup: WarmupConfig | None = None
    """A supervised phase before the main one."""
    algorithm: Algorithm = GrpoConfig()
    """The algorithm; it implies a workflow."""
    workflow: str | None = None
    """A YAML file or ``module:function`` instead of the algorithm's own workflow."""
    prompts: Prompts = AdditionPrompts()
    """Where prompts come from."""
    order: Order = ShuffledOrder()
    """In which order the main phase draws them."""
    reward: RewardConfig = RewardConfig()
    """What judges trajectories."""
    environment: EnvironmentConfig | None = None
    """Who answers the policy; null: every attempt is one turn."""
    sampling: SamplingConfig = SamplingConfig()
    """How rollouts are sampled."""
    filter: FilterConfig = FilterConfig()
    """Which groups of the main phase are not trained on."""
    engine: Engine = NativeEngineConfig()
    """What makes rollouts."""
    backend: Backend = TorchBackendConfig()
    """What trains."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How rollout and training take turns."""
    offload: OffloadConfig = OffloadConfig()
    """What engine and trainer give up for each other."""
    publish: PublishConfig = PublishConfig()
    """How it is proved that new weights arrived."""
    cluster: Cluster = LocalCluster()
    """The devices."""
    placement: PlacementConfig = PlacementConfig()
    """Which workers there are, on a cluster of several processes."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """When to evaluate."""
    save: SaveConfig = SaveConfig()
    """When to save."""
    export: ExportConfig = ExportConfig()
    """When to export the policy before the end."""
    debug: DebugConfig = DebugConfig()
    """Which half of the main phase to run alone; by default both run."""

    @model_validator(mode="after")
    def _an_end(self) -> "Recipe":
        if self.steps is None and self.epochs is None:
            raise ValueError("the run has no end: neither steps nor epochs is set. Set steps=100, or epochs=1.")
        return self

    @model_validator(mode="after")
    def _evaluations_have_prompts(self) -> "Recipe":
        if self.prompts.held_out > 0:
            return self
        asked = self.evaluate.every is not None or self.save.keep_best is not None
        waited_for = list(self.warmup.until) if self.warmup is not None else []
        named = [self.save.keep_best or "", *waited_for]
        if (asked and not self.evaluate.sets) or any(name.startswith(f"{HELD_OUT}/") for name in named):
            raise ValueError(
                "evaluations are asked for (evaluate.every, warmup.until, save.keep_best), and prompts.held_out=0 "
                "leaves nothing to evaluate on. Set prompts.held_out=0.2, name prompts in evaluate.sets, or leave "
                "those out."
            )
        return self

    @model_validator(mode="after")
    def _best_is_measured(self) -> "Recipe":
        known = tuple(targets(self.evaluate, held_out=self.prompts.held_out > 0))
        best = self.save.keep_best
        if best is not None and best not in known:
            raise ValueError(
                f"save.keep_best={best} is no metric of the evaluations that is to rise.{nearest(best, known)}"
            )
        return self

    @model_validator(mode="after")
    def _workers_fit(self) -> "Recipe":
        several = self.placement != PlacementConfig()
        if several and isinstance(self.cluster, LocalCluster):
            raise ValueError(
                f"placement.learners={self.placement.learners} and placement.rollers={self.placement.rollers} are "
                "workers in processes of their own, and cluster.type=local is one process. Set cluster.type=ray, or "
                "leave placement out."
            )
        if self.offload.acts and not isinstance(self.cluster, LocalCluster):
            raise ValueError(
                "offload lets engine and trainer take turns on one device, and with cluster.type=ray each worker has "
                "its own. Leave offload out, or set cluster.type=local."
            )
        return self

    @model_validator(mode="after")
    def _same_support(self) -> "Recipe":
        s = self.sampling
        samples = self.algorithm.type not in ("sft", "dpo", "reward-model")
        if samples and (s.top_k != 0 or s.top_p != 1.0 or s.min_p != 0.0):
            raise ValueError(
                f"sampling.top_k={s.top_k}, top_p={s.top_p}, min_p={s.min_p} cut the distribution that is sampled "
                "from, and the trainer's log-probs are over the whole vocabulary, so probability ratios would be "
                "wrong. Set sampling.top_k=0 and top_p=1 and min_p=0; evaluate.top_p and its like cut evaluations."
            )
        return self

    @model_validator(mode="after")
    def _groups_to_compare(self) -> "Recipe":
        algorithm = self.algorithm
        if self.workflow is not None or self.sampling.n > 1 or not isinstance(algorithm, PolicyGradient):
            return self
        if algorithm.compares_siblings and getattr(algorithm.estimator, "singleton", "zero") == "zero":
            raise ValueError(
                f"sampling.n=1 gives {algorithm.type} groups of one, whose advantages are all 0, so nothing would be "
                "learned. Set sampling.n=2 or more, or algorithm.type=ppo, reinforce-pp or remax, which compare none."
            )
        return self

    @model_validator(mode="after")
    def _draws_can_be_had(self) -> "Recipe":
        check_order(self.order, self.epochs)
        algorithm = self.algorithm
        greedy = isinstance(algorithm, PolicyGradient) and algorithm.takes_greedy
        self.filter.check(self.sampling.n + greedy, dynamic=getattr(algorithm, "dynamic_sampling", False))
        return self

    @model_validator(mode="after")
    def _ratios_are_right(self) -> "Recipe":
        algorithm, lag = self.algorithm, self.schedule.most_staleness
        if not isinstance(algorithm, UpdateFields):
            return self
        if not isinstance(algorithm, RatioFields):
            if lag and algorithm.correction is None:
                raise ValueError(
                    f"{algorithm.type} has no probability ratio: it is for rollouts of the very policy, and "
                    f"schedule.max_staleness={lag} would be wrong. Set it to 0, or algorithm.correction.weights=token, "
                    "or algorithm.type=grpo."
                )
        elif algorithm.proximal == "sampler" and algorithm.weighs_by_ratio:
            raise ValueError(
                "algorithm.proximal=sampler has the ratio to the sampler in the loss, and algorithm.correction.weights="
                f"{algorithm.correction.weights if algorithm.correction else 'none'} would count it twice. Set "
                "algorithm.proximal=recompute, or correction.weights=none."
            )
        elif algorithm.proximal == "detach" and algorithm.num_updates > 1:
            raise ValueError(
                "algorithm.proximal=detach makes every probability ratio 1, and of "
                f"{algorithm.num_updates} updates of a step the later ones need it. Set algorithm.proximal=recompute."
            )
        return self

    @model_validator(mode="after")
    def _fits_several_turns(self) -> "Recipe":
        algorithm = self.algorithm
        if self.environment is None or self.workflow is not None or not isinstance(algorithm, PolicyGradient):
            return self
        if algorithm.takes_greedy:
            where = "type" if algorithm.type == "remax" else "advantages.type"
            raise ValueError(
                f"algorithm.{where}=remax takes a greedy attempt of one turn as its baseline, and the recipe has an "
                f"environment. Set algorithm.{where}=rloo."
            )
        if isinstance(algorithm, DapoConfig) and algorithm.charges:
            raise ValueError(
                "algorithm.type=dapo charges attempts that come near to sampling.max_tokens, which is the limit of one "
                "turn, and the recipe has an environment, whose attempts have several. Set algorithm.overlong_buffer=0."
            )
        return self

    @model_validator(mode="after")
    def _taught_by_someone(self) -> "Recipe":
        if self.algorithm.type == "distill" and self.workflow is None and self.teacher is None:
            raise ValueError(
                "algorithm.type=distill learns from a teacher, and teacher.path names none. Set teacher.path to a "
                "stronger model with the same tokenizer."
            )
        return self

    @model_validator(mode="after")
    def _invariant_engine(self) -> "Recipe":
        engine = self.engine
        if not self.schedule.deterministic or not isinstance(engine, NativeEngineConfig):
            return self
        if engine.threads != 1:
            raise ValueError(
                f"schedule.deterministic=true needs engine.threads=1, got {engine.threads}: with more threads a "
                "row's bits depend on its company. Set engine.threads=1 or schedule.deterministic=false."
            )
        if not engine.batch_invariant:
            raise ValueError(
                "schedule.deterministic=true needs engine.batch_invariant=true: without it a row's bits depend on its "
                "company. Set schedule.deterministic=false too, or leave batch_invariant out."
            )
        return self

    @model_validator(mode="after")
    def _fakes_go_together(self) -> "Recipe":
        if isinstance(self.engine, FakeEngineConfig) != isinstance(self.backend, FakeBackendConfig):
            raise ValueError(
                f"engine.type={self.engine.type} cannot sample from the weights of backend.type={self.backend.type}. "
                "Make both fake, or neither."
            )
        return self

    @model_validator(mode="after")
    def _offload_takes_turns(self) -> "Recipe":
        offload, lag = self.offload, self.schedule.most_staleness
        if offload.acts and lag != 0:
            raise ValueError(
                f"offload gives memory to whoever computes, and with schedule.max_staleness={lag} engine and trainer "
                "compute at the same time. Set schedule.max_staleness=0, or leave offload out."
            )
        if offload.trainer != "none" and offload.to == "memory" and getattr(self.backend, "device", "") == "cpu":
            raise ValueError(
                f"offload.trainer={offload.trainer} with to=memory would move the trainer's state from the host's "
                "memory (backend.device=cpu) to where it is already. Set offload.to=disk."
            )
        return self

    @model_validator(mode="after")
    def _saved_draws_end_at_once(self) -> "Recipe":
        if self.debug.rollouts_from is not None and self.schedule.over_sample is not None:
            raise ValueError(
                f"schedule.over_sample={self.schedule.over_sample:g} takes the draws that end first, and those of "
                f"debug.rollouts_from={self.debug.rollouts_from} are all there at once. Leave over_sample out."
            )
        return self

    @model_validator(mode="after")
    def _best_is_evaluated(self) -> "Recipe":
        if self.save.keep_best is not None and self.evaluate.every is None and not self.evaluate.at_end:
            raise ValueError(
                f"save.keep_best={self.save.keep_best!r} chooses by evaluations, and none is asked for. "
                "Set evaluate.every, or leave save.keep_best out."
            )
        return self
