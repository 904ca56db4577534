"""Settings of the algorithms: one model per ``algorithm.type``, and the parts they are made of.

A named algorithm is a small file with its vetted settings; ``estimators``, ``losses``, ``correction`` and
``aggregation`` hold the settings of the parts, and ``parts`` the groups of fields that algorithms share.
"""

from typing import Annotated, TypeAlias, get_args

from pydantic import Field

from stretto.config.algorithms.aggregation import Aggregation, EmptyRows, check_aggregation
from stretto.config.algorithms.base import Named, PolicyGradient
from stretto.config.algorithms.cispo import CispoConfig
from stretto.config.algorithms.composed import ComposedConfig
from stretto.config.algorithms.correction import CorrectionConfig, ProximalKind
from stretto.config.algorithms.cpgd import CpgdConfig
from stretto.config.algorithms.dapo import DapoConfig
from stretto.config.algorithms.distill import Distillation, DistillConfig
from stretto.config.algorithms.dpo import DpoConfig, PairLossKind
from stretto.config.algorithms.estimators import Advantages, GaeConfig, GroupAdvantages
from stretto.config.algorithms.gmpo import GmpoConfig
from stretto.config.algorithms.grpo import DrGrpoConfig, GrpoConfig
from stretto.config.algorithms.gspo import GspoConfig
from stretto.config.algorithms.losses import (
    ClipCovLoss,
    ClipLoss,
    KlCovLoss,
    LossKlKind,
    LossTerms,
    PolicyLoss,
    ReinforceLoss,
    loss_ref,
)
from stretto.config.algorithms.maxrl import MaxRlConfig
from stretto.config.algorithms.on_policy import GpgConfig, OpoConfig
from stretto.config.algorithms.parts import (
    AdaptiveKl,
    Proximal,
    RatioFields,
    RewardKl,
    UpdateFields,
    UpdateSettings,
)
from stretto.config.algorithms.ppo import PpoConfig, VapoConfig
from stretto.config.algorithms.reinforce_pp import ReinforcePpConfig
from stretto.config.algorithms.remax import RemaxConfig
from stretto.config.algorithms.reward_model import RewardModelConfig
from stretto.config.algorithms.rloo import RlooConfig
from stretto.config.algorithms.sapo import SapoConfig
from stretto.config.algorithms.sft import SftConfig

__all__ = [
    "ALGORITHMS",
    "AdaptiveKl",
    "Advantages",
    "Aggregation",
    "Algorithm",
    "ClipCovLoss",
    "ClipLoss",
    "CorrectionConfig",
    "DapoConfig",
    "DistillConfig",
    "Distillation",
    "DpoConfig",
    "EmptyRows",
    "GaeConfig",
    "GroupAdvantages",
    "GrpoConfig",
    "KlCovLoss",
    "LossKlKind",
    "LossTerms",
    "Named",
    "PairLossKind",
    "PolicyGradient",
    "PolicyLoss",
    "PpoConfig",
    "Proximal",
    "ProximalKind",
    "RatioFields",
    "ReinforceLoss",
    "RewardKl",
    "RewardModelConfig",
    "SftConfig",
    "UpdateFields",
    "UpdateSettings",
    "VapoConfig",
    "check_aggregation",
    "loss_ref",
]

Algorithm: TypeAlias = Annotated[
    SftConfig
    | GrpoConfig
    | DrGrpoConfig
    | DapoConfig
    | GspoConfig
    | CispoConfig
    | SapoConfig
    | GmpoConfig
    | RlooConfig
    | ReinforcePpConfig
    | RemaxConfig
    | OpoConfig
    | GpgConfig
    | MaxRlConfig
    | CpgdConfig
    | PpoConfig
    | VapoConfig
    | DistillConfig
    | DpoConfig
    | RewardModelConfig
    | ComposedConfig,
    Field(discriminator="type"),
]
"""The algorithm of a recipe, by ``type``."""

ALGORITHMS: dict[str, type[Named]] = {
    model.model_fields["type"].default: model for model in get_args(get_args(Algorithm)[0])
}
"""The model of every algorithm by its type."""
