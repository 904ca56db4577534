"""Training of a reward model on preferences."""

from typing import ClassVar, Literal

from pydantic import Field

from stretto.config.algorithms.base import Named

__all__ = ["RewardModelConfig"]


class RewardModelConfig(Named):
    """Reward-model training: a model with one output learns which of two answers people (or tests) prefer.

    Bradley and Terry 1952, as in Ouyang et al. 2022, arXiv:2203.02155, eq. 1. Prompts have ``chosen`` and ``rejected``.
    The Model ``reward`` starts from the policy's weights, with a head that gives 0; the run exports it, and
    ``reward.use=reward_model`` judges by it.
    """

    type: Literal["reward-model"] = "reward-model"
    """Which algorithm."""
    center_coef: float = Field(default=0.0, ge=0)
    """Weight of (r_chosen + r_rejected)^2, which keeps rewards around 0 (Eisenstein et al. 2023, arXiv:2312.09244)."""

    formula: ClassVar[str] = (
        "L = -log sigmoid(r_chosen - r_rejected) + center_coef (r_chosen + r_rejected)^2, mean over pairs\n"
        "r: the head's output after the last token of the answer, the one that ends it included"
    )
    paper: ClassVar[str] = "Ouyang et al. 2022, InstructGPT, arXiv:2203.02155, eq. 1"
