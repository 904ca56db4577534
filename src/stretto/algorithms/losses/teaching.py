"""The loss of distillation: a divergence of the policy's distribution from a teacher's, at every token.

V is the vocabulary. Both distributions come as log-probs over all of it, for some tokens at a time
(``Tokens.over_vocabulary``), so that no [N, V] numbers are ever kept.
"""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from stretto.algorithms.losses.metrics import mean_of, policy_metrics, total_of
from stretto.algorithms.losses.tokens import LossOutput, Tokens
from stretto.errors import ConfigError

__all__ = ["distill", "divergence_of"]

Divergence = Literal["reverse_kl", "forward_kl", "jsd"]


def distill(
    tokens: Tokens,
    *,
    divergence: Divergence = "reverse_kl",
    beta: float = 0.5,
    top_k: int | None = None,
    entropy_coef: float = 0.0,
) -> LossOutput:
    """``D(policy, teacher) - entropy_coef * entropy`` at every token; see ``divergence_of``.

    The gradient goes through the policy's distribution and not through what it sampled, as in Agarwal et al. 2023,
    arXiv:2306.13649, section 3.
    """
    kept = tokens.trained()
    loss_N = kept.over_vocabulary(partial(divergence_of, divergence=divergence, beta=beta, top_k=top_k))
    metrics = {**policy_metrics(tokens), "divergence": mean_of(loss_N)}
    if entropy_coef:
        if kept.entropy_N is None:
            raise ConfigError("an entropy bonus needs a Model that gives entropies. Train a policy with it.")
        loss_N = loss_N - entropy_coef * kept.entropy_N
    total = kept.weighted_sum(loss_N)
    return LossOutput(total=total, metrics={**metrics, "loss": total_of(total)})


def divergence_of(
    logp_NV: Tensor, teacher_NV: Tensor, *, divergence: Divergence, beta: float = 0.5, top_k: int | None = None
) -> Tensor:
    """A divergence [N] of the policy p from the teacher q, both as log-probs [N, V].

    - reverse_kl: ``KL(p || q)``. Gu et al. 2023, arXiv:2306.08543, eq. 1.
    - forward_kl: ``KL(q || p)``. Hinton et al. 2015, arXiv:1503.02531.
    - jsd: ``beta KL(q || m) + (1 - beta) KL(p || m)``, ``m = beta q + (1 - beta) p``. Agarwal et al. 2023,
      arXiv:2306.13649, section 2, where it is D_JSD(beta)(teacher || student).

    ``top_k``: over the teacher's k likeliest tokens, all others being one outcome. That is a divergence again, never
    more than the whole one (data processing inequality), and 0 only if the masses agree; renormalised over k tokens,
    as some peers do, it would not see where the rest of the policy's mass is.
    """
    if top_k is not None and top_k < logp_NV.shape[-1]:
        top = teacher_NV.topk(top_k, dim=-1).indices
        logp_NV, teacher_NV = _with_rest(logp_NV, top), _with_rest(teacher_NV, top)
    if divergence == "reverse_kl":
        return _kl(logp_NV, teacher_NV)
    if divergence == "forward_kl":
        return _kl(teacher_NV, logp_NV)
    mixed_NV = torch.logaddexp(teacher_NV + math.log(beta), logp_NV + math.log1p(-beta))
    return beta * _kl(teacher_NV, mixed_NV) + (1 - beta) * _kl(logp_NV, mixed_NV)


def _kl(a_NV: Tensor, b_NV: Tensor) -> Tensor:
    """KL(a || b) of log-probs [N, V]."""
    return (a_NV.exp() * (a_NV - b_NV)).sum(-1)


def _with_rest(logp_NV: Tensor, top_NK: Tensor) -> Tensor:
    """Log-probs of the tokens ``top`` and, last, of all others together: [N, K + 1]."""
    rest_N = logp_NV.scatter(-1, top_NK, -math.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logp_NV.gather(-1, top_NK), rest_N], -1)
