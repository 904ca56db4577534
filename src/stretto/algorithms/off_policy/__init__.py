"""Off-policy correction: a layer between batch and loss. Numpy only, float64 inside.

``correct`` is the layer; below it stand pure functions over ``LogRatios``: ``weights`` (what a token's loss is
multiplied by), ``rejection`` (which tokens leave the loss and its denominators), ``metrics`` (how far sampler and
trainer are apart), ``proximal`` (the old log-probs that a surrogate's ratio is taken to).
"""

from stretto.algorithms.off_policy.correction import Correction, correct
from stretto.algorithms.off_policy.metrics import (
    bound_metrics,
    effective_sample_size,
    off_policy_metrics,
    rejection_metrics,
    weight_metrics,
    with_weight_ess,
)
from stretto.algorithms.off_policy.proximal import proximal_logprobs, staleness
from stretto.algorithms.off_policy.ratios import LogRatios
from stretto.algorithms.off_policy.rejection import (
    reject_geometric,
    reject_kl,
    reject_negative,
    reject_outliers,
    reject_sequences,
    reject_tokens,
)
from stretto.algorithms.off_policy.weights import importance_weights, normalize_weights

__all__ = [
    "Correction",
    "LogRatios",
    "bound_metrics",
    "correct",
    "effective_sample_size",
    "importance_weights",
    "normalize_weights",
    "off_policy_metrics",
    "proximal_logprobs",
    "reject_geometric",
    "reject_kl",
    "reject_negative",
    "reject_outliers",
    "reject_sequences",
    "reject_tokens",
    "rejection_metrics",
    "staleness",
    "weight_metrics",
    "with_weight_ess",
]
