"""Settings of off-policy correction: what the loss of a token is weighted by, and which tokens it leaves out.

The formulas live in ``stretto.algorithms.off_policy``. A ratio is exp(trainer - sampler) of log-probs; 1 is on-policy.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from stretto.config.base import Section
from stretto.errors import nearest

__all__ = [
    "KL_CRITERIA",
    "CorrectionConfig",
    "GeometricBounds",
    "NegativeRows",
    "OutlierBounds",
    "ProximalKind",
    "RejectConfig",
    "SequenceBounds",
    "TokenBounds",
    "WeightLevel",
    "WeightMode",
]

ProximalKind = Literal["detach", "sampler", "recompute", "interpolate"]
WeightLevel = Literal["token", "sequence", "geometric"]
WeightMode = Literal["truncate", "icepop"]

KL_CRITERIA = ("token_k2", "token_k3", *(f"seq_{how}_{k}" for how in ("sum", "mean", "max") for k in ("k2", "k3")))
"""The names that ``reject.kl`` knows: where the estimate is taken, and which one it is."""

VETTED: Mapping[WeightMode, tuple[float, float]] = {"truncate": (0.0, 2.0), "icepop": (0.5, 5.0)}
"""The bounds of weights where none are given."""


class TokenBounds(Section):
    """Leaves out every token whose ratio is outside."""

    lower: float = Field(default=0.5, ge=0, le=1)
    """Smallest ratio that stays; 0 is no bound."""
    upper: float = Field(default=2.0, ge=1)
    """Largest ratio that stays."""


class SequenceBounds(Section):
    """Leaves out every row whose ratio, the product of its tokens', is outside."""

    lower: float = Field(default=0.5, ge=0, le=1)
    """Smallest product that stays; 0 is no bound."""
    upper: float = Field(default=2.0, ge=1)
    """Largest product that stays."""


class GeometricBounds(Section):
    """Leaves out every row whose geometric mean of token ratios is outside; unlike the product it has no length in it.

    Liu, Li et al. 2025, "When speed kills stability".
    """

    lower: float = Field(default=0.99, ge=0, le=1)
    """Smallest geometric mean that stays; 0 is no bound."""
    upper: float = Field(default=1.01, ge=1)
    """Largest geometric mean that stays."""


class OutlierBounds(Section):
    """Leaves out every row with a token whose ratio is outside: one such token spoils all that follows it."""

    lower: float = Field(default=1e-4, ge=0, le=1)
    """Smallest ratio that a row may have in it; 0 is no bound."""
    upper: float = Field(default=100.0, ge=1)
    """Largest ratio that a row may have in it."""


class NegativeRows(Section):
    """Leaves out the tokens with a negative advantage of rows that the policy has moved away from.

    DeepSeek-AI 2025, arXiv:2512.02556, section 3.1. The paper gives no number for delta.
    """

    delta: float = Field(default=0.5, gt=0)
    """Largest mean of old minus current log-prob, in nats per token, that such a row may have."""


class RejectConfig(Section):
    """Which tokens leave the loss and its denominators. A token stays if every criterion that is set keeps it."""

    token: TokenBounds | None = None
    """Every token by itself."""
    sequence: SequenceBounds | None = None
    """Whole rows by the product of their ratios."""
    geometric: GeometricBounds | None = None
    """Whole rows by the geometric mean of their ratios."""
    outlier: OutlierBounds | None = None
    """Whole rows by their worst token."""
    older: int | None = Field(default=None, ge=0)
    """Tokens whose weights are more than this many versions older than those that wrote the last of their row, as where
    a completion went on while weights changed (schedule.in_flight); 0 keeps what the newest wrote."""
    kl: dict[str, float] = Field(default_factory=dict[str, float])
    """Largest KL estimates, in nats, such as ``{token_k3: 0.2, seq_mean_k3: 0.05}``: k2 is d^2/2 and k3 is
    exp(d) - 1 - d of a token's log-ratio d; ``seq_sum``, ``seq_mean`` and ``seq_max`` judge whole rows."""
    negative: NegativeRows | None = None
    """Rows far from the policy, where their advantage is negative."""

    @property
    def acts(self) -> bool:
        """Whether any criterion is set."""
        return (
            bool(self.kl)
            or self.older is not None
            or any((self.token, self.sequence, self.geometric, self.outlier, self.negative))
        )

    @model_validator(mode="after")
    def _known_estimates(self) -> "RejectConfig":
        for name, bound in self.kl.items():
            given = f"algorithm.correction.reject.kl.{name}={bound}"
            if name.endswith("_k1"):
                raise ValueError(
                    f"{given}: k1 is the log-ratio itself, which reject.token, reject.sequence and reject.geometric "
                    "bound. Set one of them."
                )
            if name not in KL_CRITERIA:
                raise ValueError(f"{given} is not known.{nearest(name, KL_CRITERIA)}")
            if bound <= 0:
                raise ValueError(f"{given} would leave nothing. Set a bound above 0, in nats.")
        return self


class CorrectionConfig(Section):
    """Off-policy correction: for rollouts that another policy sampled than the one trained, be it older weights or the
    same ones in an engine that computes differently.

    weights=token is truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"); with mode=icepop it is IcePop (Ling Team 2025, arXiv:2510.18855).
    """

    weights: Literal["none", "token", "sequence", "geometric"] = "none"
    """What the loss of a token is multiplied by: nothing, its ratio, the product of its row's ratios (unbiased, with
    the variance that has), or their geometric mean."""
    mode: Literal["truncate", "icepop"] = "truncate"
    """What happens to weights outside the bounds: ``truncate`` sets them to the bound, ``icepop`` to 0 (the token still
    counts in the denominators, unlike a rejected one)."""
    lower: float | None = Field(default=None, ge=0, le=1)
    """Smallest weight; null: 0, or 0.5 with mode=icepop."""
    upper: float | None = Field(default=None, ge=1)
    """Largest weight; null: 2, or 5 with mode=icepop."""
    normalize: bool = False
    """Whether weights are divided by their mean over what is kept: over tokens, or rows where rows share a weight."""
    reject: RejectConfig = RejectConfig()
    """What is left out."""
    log_ratio_clamp: float | None = Field(default=20.0, gt=0)
    """Log-ratios are held within this, in nats, before exp; null: not at all."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest weight."""
        lower, upper = VETTED[self.mode]
        return (lower if self.lower is None else self.lower, upper if self.upper is None else self.upper)

    @property
    def acts(self) -> bool:
        """Whether anything is weighted or left out."""
        return self.weights != "none" or self.reject.acts

    @model_validator(mode="after")
    def _weights_to_bound(self) -> "CorrectionConfig":
        if self.weights != "none":
            return self
        for name in ("mode", "lower", "upper", "normalize"):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"algorithm.correction.{name}={str(value).lower()} is about weights, and weights=none makes none. "
                    f"Set algorithm.correction.weights=token, or leave {name} out."
                )
        return self
