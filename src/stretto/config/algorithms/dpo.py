"""Direct preference optimisation, with its relatives IPO and SLiC's hinge."""

from typing import ClassVar, Literal

from pydantic import Field

from stretto.config.algorithms.base import Named

__all__ = ["DpoConfig", "PairLossKind"]

PairLossKind = Literal["sigmoid", "hinge", "ipo"]


class DpoConfig(Named):
    """Direct preference optimisation: of two answers to a prompt, the chosen one becomes likelier than the rejected.

    Rafailov et al. 2023, arXiv:2305.18290, eq. 7. Prompts have ``chosen`` and ``rejected``; nothing is sampled and no
    reward is needed. The reference is the policy as it was at the start of the phase.
    """

    type: Literal["dpo"] = "dpo"
    """Which algorithm."""
    beta: float = Field(default=0.1, gt=0)
    """How closely the policy is held to the reference (of ipo: tau, the weight of the KL)."""
    loss: PairLossKind = "sigmoid"
    """Of the margin h = beta (log-ratio of chosen - log-ratio of rejected): ``sigmoid`` (DPO), ``hinge`` max(0, 1 - h)
    (SLiC, Zhao et al. 2023, arXiv:2305.10425), ``ipo`` (h / beta - 1 / (2 beta))^2 (Azar et al. 2023, arXiv:2310.12036,
    eq. 17)."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of pairs that are taken to be the wrong way round (conservative DPO, Mitchell 2023); of sigmoid only."""

    formula: ClassVar[str] = (
        "h = beta (log pi(chosen) / pi_ref(chosen) - log pi(rejected) / pi_ref(rejected)), sums over tokens\n"
        "L = -(1 - label_smoothing) log sigmoid(h) - label_smoothing log sigmoid(-h), mean over pairs"
    )
    paper: ClassVar[str] = "Rafailov et al. 2023, arXiv:2305.18290, eq. 7"
