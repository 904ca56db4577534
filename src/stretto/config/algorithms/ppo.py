"""PPO with a critic, and VAPO, which is PPO for long chains of thought."""

from typing import ClassVar, Literal

from pydantic import Field

from stretto.config.algorithms.aggregation import Aggregation
from stretto.config.algorithms.base import PolicyGradient, SectionType
from stretto.config.algorithms.estimators import GaeConfig
from stretto.config.algorithms.parts import ClipFields, GaeFields, RatioFields, RewardKlFields, UpdateFields, like
from stretto.config.by_step import Rate

__all__ = ["PpoConfig", "VapoConfig"]


class PpoConfig(UpdateFields, RatioFields, RewardKlFields, ClipFields, GaeFields, PolicyGradient):
    """Proximal policy optimisation: a critic's values, generalised advantages, a clipped ratio.

    Schulman et al., arXiv:1707.06347 and arXiv:1506.02438; the KL penalty is in the reward, as in Ouyang et al. 2022,
    arXiv:2203.02155.
    """

    type: Literal["ppo"] = "ppo"
    """Which algorithm."""
    kl_coef: Rate = like(RewardKlFields, "kl_coef", 0.05)
    value_clip: float | None = Field(default=0.2, gt=0)
    """Values further than this from those of the rollout are clipped in the loss; null: they are not."""
    critic_warmup: int = Field(default=0, ge=0)
    """Steps at the start in which only the critic learns, and the policy stays as it is."""

    estimator_model: ClassVar[SectionType] = GaeConfig
    formula: ClassVar[str] = (
        "delta_t = r_t - kl_coef KL_t + gamma V_t+1 - V_t;  A_t = delta_t + gamma lam A_t+1;  R_t = A_t + V_t\n"
        "policy: max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), mean over tokens\n"
        "critic: max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2) / 2, mean over tokens"
    )
    paper: ClassVar[str] = "Schulman et al. 2017, arXiv:1707.06347, eq. 7; and 2015, arXiv:1506.02438, eq. 11-16"

    @property
    def compares_siblings(self) -> bool:
        """No: every attempt is compared with what the critic expected."""
        return False


class VapoConfig(UpdateFields, RatioFields, RewardKlFields, ClipFields, GaeFields, PolicyGradient):
    """PPO for long answers: a critic trained first, lambdas by length, clip-higher, a pull to what was right.

    Yue et al. 2025, arXiv:2504.05118, with the settings of its section 5.1. Its value pretraining is critic_warmup. One
    setting is not the paper's: its lambda by length is made for answers of hundreds of tokens, and rows of fewer than
    400 keep PPO's 0.95 here, since lambdas near 0 leave all credit to the critic. lam=null is the paper's.
    """

    type: Literal["vapo"] = "vapo"
    """Which algorithm."""
    clip_high: float = like(ClipFields, "clip_high", 0.28)
    length_alpha: float | None = like(GaeFields, "length_alpha", 0.05)
    lam_value: float | None = like(GaeFields, "lam_value", 1.0)
    value_clip: float | None = Field(default=0.2, gt=0)
    """Values further than this from those of the rollout are clipped in the loss; null: they are not."""
    critic_warmup: int = Field(default=50, ge=0)
    """Steps at the start in which only the critic learns, and the policy stays as it is."""
    nll_coef: float = Field(default=0.1, ge=0)
    """Weight of the mean negative log-likelihood of the tokens of attempts whose reward is the largest there is (1)."""
    aggregate: Aggregation = like(UpdateFields, "aggregate", "token_mean")

    estimator_model: ClassVar[SectionType] = GaeConfig
    formula: ClassVar[str] = (
        "A: GAE with lambda max(lam, 1 - 1 / (length_alpha length));  R: GAE with lam_value\n"
        "L = PPO's clipped loss, mean over tokens, + nll_coef mean(-logp) over the tokens of right attempts"
    )
    paper: ClassVar[str] = "Yue et al. 2025, arXiv:2504.05118, eq. 5 and 8-10"

    @property
    def compares_siblings(self) -> bool:
        """No: every attempt is compared with what the critic expected."""
        return False
