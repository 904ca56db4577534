"""Losses over pairs: two rows of a group, of which one is preferred. Of a policy (DPO and kin) and of a reward model.

P is the number of pairs in the micro-batch, which holds both rows of each (``LossRef.unit`` is "group"). The column
``preferred`` is 1 on the tokens of the chosen row and -1 on those of the rejected one. A pair counts with the sum of
its tokens' weights, so that the aggregation ``prompt_mean`` makes the loss the mean over pairs.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.algorithms.losses.metrics import mean_of, policy_metrics, total_of
from stretto.algorithms.losses.tokens import LossOutput, Tokens
from stretto.types import Metric

__all__ = ["bradley_terry", "dpo"]


def dpo(
    tokens: Tokens,
    *,
    beta: float = 0.1,
    kind: Literal["sigmoid", "hinge", "ipo"] = "sigmoid",
    label_smoothing: float = 0.0,
) -> LossOutput:
    """Preferences without a reward model. Columns: ``ref_logprobs``, ``preferred``.

    With ``h = beta (sum of chosen (logp - ref) - sum of rejected (logp - ref))``:

    - sigmoid: ``-(1 - eps) log sigmoid(h) - eps log sigmoid(-h)``, eps = label_smoothing. Rafailov et al. 2023,
      arXiv:2305.18290, eq. 7; with eps, Mitchell 2023 (conservative DPO), which is the cross-entropy with labels that
      are wrong with probability eps.
    - hinge: ``max(0, 1 - h)``. Zhao et al. 2023, arXiv:2305.10425, with log-ratios in place of log-probs.
    - ipo: ``(h / beta - 1 / (2 beta))^2``. Azar et al. 2023, arXiv:2310.12036, eq. 17, tau = beta. Sums over tokens, as
      there; some peers take means.
    """
    kept = tokens.trained()
    signs_N, ratio_N = kept.column("preferred"), kept.policy_logprobs() - kept.column("ref_logprobs")
    h_P = beta * kept.group_sum(signs_N * ratio_N)
    if kind == "sigmoid":
        loss_P = -(1 - label_smoothing) * F.logsigmoid(h_P) - label_smoothing * F.logsigmoid(-h_P)
    elif kind == "hinge":
        loss_P = F.relu(1 - h_P)
    else:
        loss_P = (h_P / beta - 1 / (2 * beta)).square()
    total = (kept.group_sum(kept.weights_N) * loss_P).sum()
    metrics = {**policy_metrics(tokens), "loss": total_of(total), **_pair_metrics(kept, h_P, beta * ratio_N)}
    return LossOutput(total=total, metrics=metrics)


def bradley_terry(tokens: Tokens, *, center_coef: float = 0.0) -> LossOutput:
    """A reward model: ``-log sigmoid(r_chosen - r_rejected) + center_coef (r_chosen + r_rejected)^2``.

    r is the value at the one token of each row that is trained on. Column: ``preferred``. Bradley and Terry 1952 as in
    Ouyang et al. 2022, arXiv:2203.02155, eq. 1; the second term: Eisenstein et al. 2023, arXiv:2312.09244.
    """
    kept = tokens.trained()
    values_N = kept.critic_values()
    margin_P, sum_P = kept.group_sum(kept.column("preferred") * values_N), kept.group_sum(values_N)
    loss_P = -F.logsigmoid(margin_P) + center_coef * sum_P.square()
    total = (kept.group_sum(kept.weights_N) * loss_P).sum()
    return LossOutput(total=total, metrics={"loss": total_of(total), **_pair_metrics(kept, margin_P, values_N)})


@torch.no_grad()
def _pair_metrics(kept: Tokens, margin_P: Tensor, rewards_N: Tensor) -> dict[str, Metric]:
    """Means over pairs: rewards of both answers, their difference, and the share in which it is positive (0: half)."""
    there_P = kept.group_sum(torch.ones_like(kept.weights_N)) > 0
    margin_P = margin_P[there_P]
    chosen_N = kept.column("preferred") > 0
    return {
        "pairs/accuracy": mean_of((margin_P > 0) + 0.5 * (margin_P == 0)),
        "pairs/margin": mean_of(margin_P),
        "pairs/chosen": mean_of(kept.group_sum(rewards_N * chosen_N)[there_P]),
        "pairs/rejected": mean_of(kept.group_sum(rewards_N * ~chosen_N)[there_P]),
    }
