"""Losses: what one micro-batch adds to the objective, as a plain sum over its written tokens.

N is the number of tokens the policy wrote in the micro-batch, R that of its rows; nothing else reaches a loss, so
there are no masks here. ``weights_N`` already carries every denominator of the update (``aggregation_weights``): a
loss returns ``sum(weights_N * loss_N)`` and never a mean, and the sum over all micro-batches is the objective. Rows
are never cut, so a loss may use the mean over a row; anything over the whole batch comes as a column. A loss that
compares the rows of a group, or asks for whole distributions of this Model and others, says so in its LossRef.

A loss of one's own is a function ``loss(tokens: Tokens, *, setting=default, ...) -> LossOutput``, named
``module:function`` in a LossRef, whose settings become its keyword arguments:

    def unlikelihood(tokens: Tokens, *, scale: float = 1.0) -> LossOutput:
        loss_N = scale * tokens.column("advantages") * tokens.policy_logprobs().neg()
        return LossOutput(total=tokens.weighted_sum(loss_N), metrics={})

With ``policy_loss`` before it, a function that gives TokenLosses gets the KL term, the entropy bonus, the off-policy
correction and the metrics that every policy loss has.
"""

from stretto.algorithms.losses.covariance import clip_cov, kl_cov
from stretto.algorithms.losses.divergence import dppo_kl, dppo_tv, dppo_tv_sq, rollout_is_mask, tv_sym_sq
from stretto.algorithms.losses.kl import kl_in_loss
from stretto.algorithms.losses.metrics import with_ess
from stretto.algorithms.losses.pairs import bradley_terry, dpo
from stretto.algorithms.losses.plain import cpgd, gpg, reinforce, sft
from stretto.algorithms.losses.policy import TokenLosses, log_ratio, policy_loss
from stretto.algorithms.losses.ratio import clip
from stretto.algorithms.losses.registry import LOSSES, resolve_loss
from stretto.algorithms.losses.sequence import gmpo, gspo, gspo_token
from stretto.algorithms.losses.soft import cispo, sapo, vespo
from stretto.algorithms.losses.teaching import distill, divergence_of
from stretto.algorithms.losses.tokens import Loss, LossOutput, Tokens, VocabularyFunction
from stretto.algorithms.losses.values import value_clip

__all__ = [
    "LOSSES",
    "Loss",
    "LossOutput",
    "TokenLosses",
    "Tokens",
    "VocabularyFunction",
    "bradley_terry",
    "cispo",
    "clip",
    "clip_cov",
    "cpgd",
    "distill",
    "divergence_of",
    "dpo",
    "dppo_kl",
    "dppo_tv",
    "dppo_tv_sq",
    "gmpo",
    "gpg",
    "gspo",
    "gspo_token",
    "kl_cov",
    "kl_in_loss",
    "log_ratio",
    "policy_loss",
    "reinforce",
    "resolve_loss",
    "rollout_is_mask",
    "sapo",
    "sft",
    "tv_sym_sq",
    "value_clip",
    "vespo",
    "with_ess",
]
