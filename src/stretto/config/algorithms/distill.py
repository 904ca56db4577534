"""On-policy distillation: the policy writes, a teacher says how likely it would have written the same."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stretto.config.algorithms.base import Named
from stretto.config.algorithms.losses import ReinforceLoss
from stretto.config.algorithms.parts import RatioFields, UpdateFields, like
from stretto.config.base import Section

__all__ = ["DistillConfig", "Distillation", "Divergence"]

Divergence = Literal["reverse_kl", "forward_kl", "jsd"]


class Distillation(Section):
    """A divergence from the teacher over the vocabulary, as a node is given it."""

    divergence: Divergence = "reverse_kl"
    """What is made small: KL(policy || teacher), KL(teacher || policy), or a mixture of both (see ``beta``)."""
    beta: float = Field(default=0.5, gt=0, lt=1)
    """Share of the teacher in the mixture M that jsd takes both KLs to: beta KL(teacher || M) + (1 - beta) KL(policy ||
    M)."""
    top_k: int | None = Field(default=None, ge=1)
    """The divergence over the teacher's k likeliest tokens and one place for all others; null: over every token."""


class DistillConfig(UpdateFields, RatioFields, Named):
    """On-policy distillation: attempts of the policy, each token compared with what a stronger teacher would write.

    Agarwal et al. 2023 (GKD), arXiv:2306.13649, with data of the student alone (lambda = 1); Gu et al. 2023 (MiniLLM),
    arXiv:2306.08543, for the reverse KL. ``sampled`` is the form of Lu et al. 2025 (On-policy distillation, Thinking
    Machines): the reverse KL of the token that was written is a reward of that token, and of no earlier one. No reward
    is needed. The teacher is the section ``teacher``.
    """

    type: Literal["distill"] = "distill"
    """Which algorithm."""
    teacher_logprobs: Literal["sampled", "top_k", "full"] = "full"
    """What is asked of the teacher at each token: its log-prob of the token written (an estimate, no more costly than a
    reference), its ``top_k`` likeliest tokens with the mass of the others, or its whole distribution (exact)."""
    divergence: Divergence = like(Distillation, "divergence")
    beta: float = like(Distillation, "beta")
    top_k: int | None = Field(default=None, ge=1)
    """How many of the teacher's likeliest tokens teacher_logprobs=top_k takes; all others are one outcome more."""
    ratio_max: float | None = like(ReinforceLoss, "ratio_max")
    score_attempts: bool = False
    """Whether training attempts get rewards, to be recorded; nothing is trained on them. Evaluations always do."""

    formula: ClassVar[str] = (
        "full, top_k: L = D(policy(. | s), teacher(. | s)) at every token of the policy's attempts\n"
        "             D = KL(policy || teacher), KL(teacher || policy), or\n"
        "                 beta KL(teacher || M) + (1 - beta) KL(policy || M), M = beta teacher + (1 - beta) policy\n"
        "sampled:     A = logp_teacher - logp_policy of the token written;  L = -A logp, times min(ratio, ratio_max)"
    )
    paper: ClassVar[str] = "Agarwal et al. 2023, arXiv:2306.13649, section 3; Gu et al. 2023, arXiv:2306.08543, eq. 1"

    @property
    def over_vocabulary(self) -> Distillation | None:
        """The divergence over the vocabulary; None where only the sampled token counts."""
        if self.teacher_logprobs == "sampled":
            return None
        return Distillation(divergence=self.divergence, beta=self.beta, top_k=self.top_k)

    @property
    def loss(self) -> ReinforceLoss:
        """The loss of a token that was sampled."""
        return ReinforceLoss(ratio_max=self.ratio_max)

    @model_validator(mode="after")
    def _teacher_gives_it(self) -> "DistillConfig":
        asked = self.teacher_logprobs
        if asked == "sampled" and self.divergence != "reverse_kl":
            raise ValueError(
                f"divergence={self.divergence} needs more of the teacher than teacher_logprobs=sampled asks for: the "
                "tokens the policy writes estimate the reverse KL only. Set teacher_logprobs=full, or "
                "divergence=reverse_kl."
            )
        if (asked == "top_k") != (self.top_k is not None):
            what = "top_k is missing" if asked == "top_k" else f"top_k={self.top_k} is set"
            raise ValueError(
                f"{what} with teacher_logprobs={asked}. Set teacher_logprobs=top_k and top_k=64, or neither."
            )
        return self
