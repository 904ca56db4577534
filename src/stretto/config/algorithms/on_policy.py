"""Algorithms without a ratio, for rollouts of the very policy that is trained: OPO and GPG."""

from typing import ClassVar, Literal

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import GpgAdvantages, OpoAdvantages
from stretto.config.algorithms.losses import GpgLoss
from stretto.config.algorithms.parts import KlFields, UpdateFields, like

__all__ = ["GpgConfig", "OpoConfig"]


class OpoConfig(UpdateFields, KlFields, PolicyGradient):
    """On-policy optimisation with the baseline of least variance: the group's mean reward, weighted by length.

    Hao et al. 2025, arXiv:2505.23585: exactly on-policy, without ratio, reference or entropy bonus.
    """

    type: Literal["opo"] = "opo"
    """Which algorithm."""
    singleton: Literal["zero", "raw"] = like(OpoAdvantages, "singleton")
    update_epochs: Literal[1] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Passes over a step's batch: one, since without a ratio a second would be wrong."""
    minibatches: Literal[1] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Optimizer updates of a step: one, since without a ratio later ones would be wrong."""
    aggregate: Aggregation = like(UpdateFields, "aggregate", "seq_mean_token_sum")

    estimator_model: ClassVar[SectionType] = OpoAdvantages
    loss_model: ClassVar[SectionType] = GpgLoss
    formula: ClassVar[str] = (
        "A = r - sum(length r) / sum(length), over the group\nL = -A logp, sum over tokens, mean over rows"
    )
    paper: ClassVar[str] = "Hao et al. 2025, arXiv:2505.23585"


class GpgConfig(UpdateFields, KlFields, PolicyGradient):
    """Group policy gradient: no ratio and no clip; rewards less the group's mean, made up for groups that say nothing.

    Chu et al. 2025, arXiv:2504.02546.
    """

    type: Literal["gpg"] = "gpg"
    """Which algorithm."""
    update_epochs: Literal[1] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Passes over a step's batch: one, since without a ratio a second would be wrong."""
    minibatches: Literal[1] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Optimizer updates of a step: one, since without a ratio later ones would be wrong."""
    f_norm: float = like(GpgAdvantages, "f_norm")
    rows: Literal["informative", "nonzero"] = like(GpgAdvantages, "rows")
    singleton: Literal["zero", "raw"] = like(GpgAdvantages, "singleton")

    estimator_model: ClassVar[SectionType] = GpgAdvantages
    loss_model: ClassVar[SectionType] = GpgLoss
    formula: ClassVar[str] = (
        "A = (r - mean(r)) x rows / rows that count / f_norm, over the group\nL = -A logp, mean over tokens"
    )
    paper: ClassVar[str] = "Chu et al. 2025, arXiv:2504.02546, eq. 5-8"
