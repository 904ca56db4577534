"""Which settings of an algorithm have no effect beside the others: what was given of these is refused.

A field that an algorithm does not have is refused when the recipe is read. Here are the ones it has, and that another
of its settings leaves unread; ``tests/algorithms/test_inert.py`` holds the rules of the parts to the formulas.
"""

from collections.abc import Iterator, Mapping

from stretto.config.algorithms.aggregation import COUNTLESS
from stretto.config.algorithms.base import Named, PolicyGradient
from stretto.config.algorithms.composed import ComposedConfig
from stretto.config.algorithms.correction import CorrectionConfig
from stretto.config.algorithms.dapo import DapoConfig
from stretto.config.algorithms.distill import DistillConfig
from stretto.config.algorithms.dpo import DpoConfig
from stretto.config.algorithms.estimators import (
    CpgdAdvantages,
    GaeConfig,
    GroupAdvantages,
    PassAtKAdvantages,
)
from stretto.config.algorithms.losses import CpgdLoss, LossTerms
from stretto.config.algorithms.parts import RatioFields, UpdateFields
from stretto.config.algorithms.reinforce_pp import ReinforcePpConfig
from stretto.config.base import Section
from stretto.config.by_step import most

__all__ = ["OFF_SAMPLER", "inert_fields", "inert_of_part"]

OFF_SAMPLER = frozenset({"gpg", "dppo_tv", "dppo_kl", "dppo_tv_sq", "tv_sym_sq", "rollout_is_mask"})
"""The losses that read no old log-probs: they have no ratio, or one to the sampler itself."""

_KL = ("kl_kind", "kl_gradient", "kl_clamp_in", "kl_clamp_out", "reference_every")


def inert_fields(algorithm: Named) -> Mapping[str, str]:
    """The fields without effect in this algorithm, dotted below ``algorithm``, and why, as ``scale=none divides by
    nothing``."""
    found: dict[str, str] = {}
    if isinstance(algorithm, ComposedConfig):
        found |= {f"advantages.{name}": why for name, why in inert_of_part(algorithm.advantages).items()}
        found |= {f"policy_loss.{name}": why for name, why in inert_of_part(algorithm.policy_loss).items()}
    elif isinstance(algorithm, PolicyGradient):
        found |= {**inert_of_part(algorithm.estimator), **inert_of_part(algorithm.loss)}
    found |= dict(_of_kl(algorithm)) | dict(_of_updates(algorithm)) | dict(_of_named(algorithm))
    return {name: why for name, why in found.items() if name.partition(".")[0] in type(algorithm).model_fields}


def inert_of_part(part: Section) -> Mapping[str, str]:
    """The fields without effect in an estimator, a loss, or the terms that are added to it, and why."""
    match part:
        case GroupAdvantages():
            return dict(_of_groups(part))
        case PassAtKAdvantages() if part.scale == "none":
            return dict.fromkeys(("epsilon", "ddof"), "scale=none divides by nothing")
        case CpgdAdvantages():
            read = {"clip_filter": ("cap", "count"), "group_std": ("epsilon",), "none": ()}[part.weight]
            names = (name for name in ("cap", "count", "epsilon") if name not in read)
            return dict.fromkeys(names, f"weight={part.weight} does not read it")
        case GaeConfig() if not part.whiten:
            return dict.fromkeys(("ddof", "epsilon", "stabilizer"), "whiten=false leaves the advantages as they are")
        case CpgdLoss() if part.drift_coef == 0:
            return dict.fromkeys(("drift_max", "log_ratio_clamp"), "drift_coef=0 leaves out the term that has a ratio")
        case LossTerms() if most(part.kl_coef) == 0:
            return dict.fromkeys(_KL[:4], "kl_coef=0 leaves the KL term out")
        case _:
            return {}


def _of_groups(part: GroupAdvantages) -> Iterator[tuple[str, str]]:
    if part.center == "batch_mean":
        yield "singleton", "center=batch_mean compares with the whole batch, a group of one too"
    if part.scale == "none":
        yield "ddof", "scale=none divides by nothing"
        if part.singleton != "raw_over_1_plus_eps" or part.center == "batch_mean":
            yield "epsilon", "scale=none divides by nothing"


def _of_kl(algorithm: Named) -> Iterator[tuple[str, str]]:
    if most(getattr(algorithm, "kl_coef", 1.0)) == 0:
        yield from dict.fromkeys((*_KL, "kl_target", "kl_horizon"), "kl_coef=0 leaves the KL term out").items()
    elif getattr(algorithm, "kl_target", 1.0) is None:
        yield "kl_horizon", "kl_target=null leaves the weight of the KL term as it is"


def _of_updates(algorithm: Named) -> Iterator[tuple[str, str]]:
    if isinstance(algorithm, RatioFields):
        if algorithm.proximal != "interpolate":
            yield "proximal_alpha", "proximal=interpolate alone reads it"
        loss = getattr(algorithm, "policy_loss", None)
        if loss is not None and loss.type in OFF_SAMPLER and not _weighs_by_ratio(algorithm):
            yield "proximal", f"policy_loss.type={loss.type} has no ratio to old log-probs"
    if isinstance(algorithm, UpdateFields):
        if algorithm.aggregate in COUNTLESS:
            yield "empty_rows", f"aggregate={algorithm.aggregate} counts no rows"
        correction: CorrectionConfig | None = algorithm.correction
        if correction is not None and not correction.acts:
            yield "correction", "its weights=none and its empty reject leave everything as it is"


def _weighs_by_ratio(algorithm: Named) -> bool:
    return getattr(algorithm, "kl_kind", "") == "k3_weighted" and most(getattr(algorithm, "kl_coef", 0.0)) > 0


def _of_named(algorithm: Named) -> Iterator[tuple[str, str]]:
    if isinstance(algorithm, ReinforcePpConfig):
        if algorithm.baseline:
            yield "gamma", "baseline=true has one reward for all tokens of a row"
        else:
            yield "singleton", "baseline=false compares with no group"
    if isinstance(algorithm, DistillConfig):
        if algorithm.teacher_logprobs != "sampled":
            why = f"teacher_logprobs={algorithm.teacher_logprobs} has no probability ratio"
            yield from dict.fromkeys(("ratio_max", "proximal", "proximal_alpha", "correction"), why).items()
        if algorithm.divergence != "jsd":
            yield "beta", "divergence=jsd alone reads it"
    if isinstance(algorithm, DpoConfig) and algorithm.loss != "sigmoid":
        yield "label_smoothing", "loss=sigmoid alone reads it"
    if isinstance(algorithm, DapoConfig):
        if algorithm.overlong_penalty == 0:
            yield "overlong_buffer", "overlong_penalty=0 charges nothing"
        if algorithm.overlong_buffer == 0:
            yield "overlong_penalty", "overlong_buffer=0 charges nothing"
