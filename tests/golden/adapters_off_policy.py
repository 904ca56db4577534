"""Golden cases of off_policy."""

import math

import numpy as np
from cases import Adapter, Case, padded

from stretto.algorithms.off_policy import (
    LogRatios,
    bound_metrics,
    effective_sample_size,
    importance_weights,
    normalize_weights,
    off_policy_metrics,
    reject_geometric,
    reject_kl,
    reject_negative,
    reject_outliers,
    reject_sequences,
    reject_tokens,
    rejection_metrics,
)
from stretto.config.algorithms.correction import WeightLevel, WeightMode

UNNAMED_CLAMP = 20.0
"""What estimates are clamped by where a case does not say; weights are not, then."""


def ratios_of(case: Case, trainer: str = "train_logp", sampler: str = "rollout_logp") -> LogRatios:
    mask = np.asarray(case["inputs"]["mask"])
    offsets = np.arange(len(mask) + 1) * mask.shape[1]
    return LogRatios.between(padded(case, trainer).ravel(), padded(case, sampler).ravel(), mask.ravel(), offsets)


def shaped(case: Case, values_N: np.ndarray) -> np.ndarray:
    return values_N.reshape(np.shape(case["inputs"]["mask"]))


def bounds_of(case: Case) -> tuple[float, float]:
    """A bound that is null or absent is none."""
    low, high = case["params"].get("min"), case["params"].get("max")
    return (0.0 if low is None else low, math.inf if high is None else high)


def weights(level: WeightLevel, mode: WeightMode = "truncate") -> Adapter:
    def adapter(case: Case) -> dict[str, object]:
        params, ratios = case["params"], ratios_of(case)
        lower, upper = bounds_of(case)
        limit = params.get("log_ratio_clamp")
        found = importance_weights(ratios, level, mode=mode, lower=lower, upper=upper, log_ratio_clamp=limit)
        if params.get("batch_normalize"):
            found = normalize_weights(found, ratios.written_N, ratios, level)
        raw = importance_weights(ratios, level, log_ratio_clamp=limit)
        around = importance_weights(ratios, level, lower=1 / upper, upper=upper, log_ratio_clamp=limit)
        bounded = bound_metrics(raw, ratios.written_N, lower, upper)
        return {
            "weights": shaped(case, found),
            "mean_raw": bounded["raw_weight"].value,
            "frac_high": bounded["above"].value,
            "ess_frac": effective_sample_size(around, ratios.written_N),
        }

    return adapter


def within(rejects) -> Adapter:
    def adapter(case: Case) -> dict[str, object]:
        ratios = ratios_of(case)
        return {"mask": shaped(case, ratios.written_N & ~rejects(ratios, *bounds_of(case)))}

    return adapter


def kl(case: Case) -> dict[str, object]:
    params, ratios = case["params"], ratios_of(case)
    limit = params.get("log_ratio_clamp", UNNAMED_CLAMP)
    rejected = np.zeros(len(ratios.d_N), bool)
    for criterion, threshold in zip(params["criteria"], params["thresholds"], strict=True):
        rejected |= reject_kl(ratios, criterion, np.atleast_1d(threshold).tolist(), log_ratio_clamp=limit)
    keep = ratios.written_N & ~rejected
    shares = rejection_metrics(keep, ratios)
    return {
        "mask": shaped(case, keep),
        "frac_tokens_dropped": shares["rejected_tokens"].value,
        "frac_rows_touched": shares["touched_rows"].value,
    }


def negative(case: Case) -> dict[str, object]:
    moved = ratios_of(case, "logp", "old_logp")
    rejected = reject_negative(moved, padded(case, "advantages").ravel(), case["params"]["delta"])
    return {"mask": shaped(case, moved.written_N & ~rejected)}


NAMES = {
    "training_ppl": "trainer_ppl",
    "training_log_ppl": "trainer_log_ppl",
    "rollout_ppl": "sampler_ppl",
    "rollout_log_ppl": "sampler_log_ppl",
    "k3_kl": "kl_k3",
    "log_ppl_abs_diff": "log_ppl_diff_abs",
}


def metrics(case: Case) -> dict[str, object]:
    ratios = ratios_of(case)
    limit = case["params"].get("log_ratio_clamp", UNNAMED_CLAMP)
    trainer, sampler = padded(case, "train_logp").ravel(), padded(case, "rollout_logp").ravel()
    ours = off_policy_metrics(trainer, sampler, ratios, log_ratio_clamp=limit)
    return {key: ours[NAMES.get(str(key), str(key))].value for key in case["expected"]}


VARIANTS: dict[str, Adapter] = {
    "is.token": weights("token"),
    "is.sequence": weights("sequence"),
    "is.icepop": weights("token", "icepop"),
    "is.row_geometric_clamp": weights("geometric"),
    "mask.token_ratio": within(reject_tokens),
    "mask.row_outlier": within(reject_outliers),
    "mask.row_geometric": within(reject_geometric),
    "mask.row_product": within(reject_sequences),
    "mask.kl": kl,  # of any criteria, which stand after a colon
    "mask.negative_off_policy_row": negative,
    "metrics.off_policy": metrics,
}
