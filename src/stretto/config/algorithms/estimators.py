"""Settings of the advantage estimators: one model per ``type``. The formulas live in ``stretto.algorithms.advantages``.

``Advantages`` is the choice among those that need no critic; ``GaeConfig`` is the critic's.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from stretto.config.base import Section

__all__ = [
    "Advantages",
    "Center",
    "CpgdAdvantages",
    "GaeConfig",
    "GdpoAdvantages",
    "GpgAdvantages",
    "GroupAdvantages",
    "MaxRlAdvantages",
    "OpoAdvantages",
    "PassAtKAdvantages",
    "ReinforcePpAdvantages",
    "ReinforcePpBaselineAdvantages",
    "RemaxAdvantages",
    "RewardKlKind",
    "RlooAdvantages",
    "Scale",
    "Singleton",
    "Stabilizer",
]

Center = Literal["mean", "leave_one_out", "batch_mean"]
Scale = Literal["none", "group_std", "group_std_floor", "leave_one_out_std", "leave_one_out_deviation", "batch_std"]
Singleton = Literal["zero", "raw", "raw_over_1_plus_eps"]
Stabilizer = Literal["add_to_variance", "variance_floor", "add_to_std"]
RewardKlKind = Literal["k1", "k2", "k3", "abs"]


class GroupAdvantages(Section):
    """Rewards relative to the siblings of their group: A = (r - centre) / scale.

    The defaults are GRPO's (Shao et al. 2024, arXiv:2402.03300, section 4.1.2); scale=none is Dr. GRPO's (Liu et al.
    2025, arXiv:2503.20783, section 3.2); center=mean with scale=batch_std is near that of Liu et al. 2025,
    arXiv:2508.08221, whose deviation is that of the batch's rewards with the groups' means in them.
    """

    type: Literal["group"] = "group"
    """Which estimator."""
    center: Center = "mean"
    """What is taken from a reward: the mean of its group, that of its siblings without itself, or that of the batch."""
    scale: Scale = "group_std"
    """What is then divided by: nothing; the group's standard deviation; the same with a variance of at least epsilon;
    the standard deviation of the siblings without the row itself; the root mean square of a group's differences to its
    leave-one-out means; or the root mean square of what ``center`` leaves in the whole batch."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to what is divided by; with group_std_floor also the smallest variance."""
    ddof: Literal[0, 1] = 1
    """Taken from the number of rewards in a variance: 1 is unbiased, 0 divides by all."""
    singleton: Singleton = "zero"
    """The advantage of a group of one, which has nothing to compare with: 0, its reward, or its reward over
    1 + epsilon. Other than 0 is the convention of other frameworks."""


class RlooAdvantages(Section):
    """The reward less the mean of the siblings' (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740)."""

    type: Literal["rloo"] = "rloo"
    """Which estimator."""
    singleton: Literal["zero", "raw"] = "zero"
    """The advantage of a group of one: 0, or its reward."""


class ReinforcePpAdvantages(Section):
    """REINFORCE++: discounted rewards to go, whitened over the batch's written tokens (Hu 2025, arXiv:2501.03262)."""

    type: Literal["reinforce_pp"] = "reinforce_pp"
    """Which estimator."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per written token."""
    ddof: Literal[0, 1] = 1
    """Taken from the number of tokens in the variance: 1 is unbiased, 0 divides by all."""
    epsilon: float = Field(default=1e-8, gt=0)
    """What keeps whitening from dividing by 0; ``stabilizer`` says how."""
    stabilizer: Stabilizer = "add_to_variance"
    """Where epsilon goes: added to the variance, the least variance, or added to the standard deviation."""


class ReinforcePpBaselineAdvantages(Section):
    """REINFORCE++ with a baseline: the reward less its group's mean, whitened over the batch's written tokens (Hu 2025,
    arXiv:2501.03262). Whitening moves every token, so a group without a difference need not come out as 0."""

    type: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"
    """Which estimator."""
    ddof: Literal[0, 1] = 1
    """Taken from the number of tokens in the variance: 1 is unbiased, 0 divides by all."""
    epsilon: float = Field(default=1e-8, gt=0)
    """What keeps whitening from dividing by 0; ``stabilizer`` says how."""
    stabilizer: Stabilizer = "add_to_variance"
    """Where epsilon goes: added to the variance, the least variance, or added to the standard deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """What a group of one brings into the whitening: 0, or its reward."""


class RemaxAdvantages(Section):
    """ReMax: the reward to go less the reward of the greedy attempt at the same prompt (Li et al. 2023,
    arXiv:2310.10505). A group has one attempt more than are trained, sampled greedily."""

    type: Literal["remax"] = "remax"
    """Which estimator."""


class OpoAdvantages(Section):
    """OPO: the reward less the mean reward of the group, weighted by length, which makes the variance least if the
    squared gradient norm grows with the length (Hao et al. 2025, arXiv:2505.23585)."""

    type: Literal["opo"] = "opo"
    """Which estimator."""
    singleton: Literal["zero", "raw"] = "zero"
    """The advantage of a group of one: 0, or its reward."""


class GpgAdvantages(Section):
    """GPG: the reward less its group's mean, times rows / rows that count (Chu et al. 2025, arXiv:2504.02546)."""

    type: Literal["gpg"] = "gpg"
    """Which estimator."""
    f_norm: float = Field(default=1.0, gt=0)
    """What all advantages are divided by."""
    rows: Literal["informative", "nonzero"] = "informative"
    """Which rows count: those of groups with a difference, as in the paper, or those whose reward is not 0, as verl
    has it."""
    singleton: Literal["zero", "raw"] = "zero"
    """The advantage of a group of one before the factor: 0, or its reward."""


class MaxRlAdvantages(Section):
    """MaxRL: (r - m) / m with the group's mean m, which follows the likelihood of success (Tajwar et al. 2026,
    arXiv:2602.02710, algorithm 1). Rewards are 0 or more."""

    type: Literal["maxrl"] = "maxrl"
    """Which estimator."""
    epsilon: float = Field(default=0.0, ge=0)
    """Added to the mean; with 0, a group whose mean is not above 0 has advantage 0."""
    singleton: Singleton = "zero"
    """The advantage of a group of one: 0, its reward, or its reward over 1 + epsilon."""


class PassAtKAdvantages(Section):
    """Pass@k with k the group's size: the best attempt alone is credited, with what it is above the second best (Tang
    et al. 2025, arXiv:2503.19595). A tie for the best gives 0 to all."""

    type: Literal["pass_at_k"] = "pass_at_k"
    """Which estimator."""
    scale: Literal["group_std", "none"] = "group_std"
    """What the difference is divided by: the group's standard deviation plus epsilon, or nothing."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation."""
    ddof: Literal[0, 1] = 1
    """Taken from the number of rewards in the variance: 1 is unbiased, 0 divides by all."""


class GdpoAdvantages(Section):
    """GDPO, for several rewards: each is made relative to its group on its own, their weighted sum is standardised over
    the batch (Liu et al. 2026, arXiv:2601.05242, eq. 4-7)."""

    type: Literal["gdpo"] = "gdpo"
    """Which estimator."""
    weights: dict[str, float] = Field(default_factory=dict[str, float])
    """The weight of each named reward; those not named here have no part. Empty: all of them, with weight 1."""
    leave_one_out: bool = False
    """Whether mean and standard deviation are those of the other siblings."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation of a group; the batch's has nothing added."""
    ddof: Literal[0, 1] = 1
    """Taken from the number of rewards in a group's variance: 1 is unbiased, 0 divides by all."""


class CpgdAdvantages(Section):
    """CPGD: the reward less its group's mean, weighted by group (Liu et al. 2025, arXiv:2505.12504)."""

    type: Literal["cpgd"] = "cpgd"
    """Which estimator."""
    weight: Literal["clip_filter", "group_std", "none"] = "clip_filter"
    """1 over the share of groups that have a difference, at most ``cap``; 1 over the group's standard deviation plus
    epsilon; or 1."""
    cap: float = Field(default=3.0, ge=1)
    """The largest weight of clip_filter."""
    count: Literal["groups", "rows"] = "groups"
    """What clip_filter counts in the whole batch: groups, as the paper's authors do, or rows, as siiRL does, by which
    the weight is at its cap almost always."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation, where that is the weight."""


Advantages: TypeAlias = Annotated[
    GroupAdvantages
    | RlooAdvantages
    | ReinforcePpAdvantages
    | ReinforcePpBaselineAdvantages
    | RemaxAdvantages
    | OpoAdvantages
    | GpgAdvantages
    | MaxRlAdvantages
    | PassAtKAdvantages
    | GdpoAdvantages
    | CpgdAdvantages,
    Field(discriminator="type"),
]
"""The choice of an estimator that needs no critic, by ``type``."""


class GaeConfig(Section):
    """Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438, eq. 11-16).

    Two lambdas: Yuan et al. 2025 (VC-PPO), arXiv:2503.01491. A lambda that grows with the length: Yue et al. 2025
    (VAPO), arXiv:2504.05118, with lam=null, length_alpha=0.05, lam_value=1.
    """

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per written token."""
    lam: float | None = Field(default=0.95, ge=0, le=1)
    """Lambda of the advantages; with ``length_alpha`` the least one, and null is 0."""
    length_alpha: float | None = Field(default=None, gt=0)
    """Lambda of the advantages by row: 1 - 1 / (length_alpha x written tokens), at least ``lam``; null: ``lam``."""
    lam_value: float | None = Field(default=None, ge=0, le=1)
    """Lambda of the returns that the critic is fitted to; null: that of the advantages. 1 is Monte Carlo."""
    whiten: bool = True
    """Whether advantages are shifted and scaled to mean 0, standard deviation 1 over the batch's written tokens."""
    ddof: Literal[0, 1] = 1
    """Taken from the number of tokens in the whitening's variance: 1 is unbiased, 0 divides by all."""
    epsilon: float = Field(default=1e-8, gt=0)
    """What keeps whitening from dividing by 0; ``stabilizer`` says how."""
    stabilizer: Stabilizer = "add_to_variance"
    """Where epsilon goes: added to the variance, the least variance, or added to the standard deviation."""

    @model_validator(mode="after")
    def _a_lambda(self) -> "GaeConfig":
        if self.lam is None and self.length_alpha is None:
            raise ValueError(
                "lam=null and length_alpha=null leave the advantages without a lambda. Set lam=0.95, or length_alpha."
            )
        return self
