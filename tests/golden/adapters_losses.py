"""Golden cases of losses, KL terms in the loss, and aggregations."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from cases import Adapter, Case, padded
from torch import Tensor

from stretto.algorithms.aggregation import Denominators, aggregation_weights
from stretto.algorithms.covariance import selection_column
from stretto.algorithms.losses import LOSSES, LossOutput, Tokens, kl_in_loss
from stretto.algorithms.off_policy import LogRatios, importance_weights, reject_geometric
from stretto.config.algorithms.losses import ClipCovLoss, KlCovLoss
from stretto.types import Batch, Column, Group, Key, Prompt, Trajectory

COLUMNS = {
    "old_logp": "old_logprobs",
    "advantages": "advantages",
    "ref_logp": "ref_logprobs",
    "weights": "correction",
    "returns": "returns",
    "old_values": "old_values",
}
"""Our columns by the names of the inputs."""

Settings = Mapping[str, str]
RATIO = {"log_ratio_clamp": "log_ratio_clamp"}
CLIP = {"clip_low": "clip_low", "clip_high": "clip_high"}
DELTAS = {"delta_low": "delta_low", "delta_high": "delta_high"}
SQUARE = {"adv_scale": "adv_scale", "sq_coef": "sq_coef"}
KL = {"kl_coef": "kl_coef", "kl_gradient": "kl_gradient", "clamp_in": "kl_clamp_in", "clamp_out": "kl_clamp_out"}


def batch_from(mask: np.ndarray, draws: list[int]) -> Batch:
    """A trajectory per row of a mask."""
    groups: dict[int, list[Trajectory]] = {}
    for row, (mask_T, draw) in enumerate(zip(mask, draws, strict=True)):
        groups.setdefault(draw, []).append(
            Trajectory(
                key=Key(draw, row),
                token_ids_T=np.zeros(len(mask_T), np.int32),
                mask_T=mask_T.astype(np.uint8),
                logprobs_T=np.zeros(len(mask_T), np.float32),
                versions=(),
                finish="stop",
            )
        )
    prompt = Prompt(uid="p", text="p", token_ids=np.zeros(1, np.int32))
    return Batch(groups=tuple(Group(draw=d, prompt=prompt, trajectories=tuple(ts)) for d, ts in groups.items()))


def mask_of(case: Case) -> np.ndarray:
    return np.asarray(case["inputs"]["mask"])


def batch_of(case: Case) -> Batch:
    """Every row is a prompt of its own, unless ranges of rows are given."""
    mask = mask_of(case)
    bounds = case["params"].get("prompt_bounds") or [[row, row + 1] for row in range(len(mask))]
    draws = [next(p for p, (start, end) in enumerate(bounds) if start <= row < end) for row in range(len(mask))]
    return batch_from(mask, draws)


def weights_of(case: Case, aggregate: str) -> np.ndarray:
    """Our weights [rows, T] for an aggregation by the names of the cases."""
    params = case["params"]
    empty_rows, norm = params.get("empty_rows"), None
    if aggregate == "rows_mean":
        aggregate, empty_rows = "seq_mean_token_mean", empty_rows or "include"
    if aggregate == "seq_mean_token_sum_norm":
        norm = params["norm"]
        aggregate = aggregate if params.get("divide_by_rows") else "token_sum_norm"
    counts = None
    if params.get("global_tokens") is not None or params.get("global_rows") is not None:
        counts = Denominators(tokens=params.get("global_tokens") or 0, rows=params.get("global_rows") or 0)
        empty_rows = None  # the count that is given has them or has not
    weights = aggregation_weights(
        batch_of(case),
        aggregate,
        norm=norm,
        empty_rows="exclude" if aggregate in ("token_mean", "token_sum_norm") else empty_rows or "exclude",
        counts=counts,
        num_ranks=params.get("dp_size") or 1,
    )
    return weights.values.reshape(mask_of(case).shape)


def tokens_of(case: Case, leaf: str, extra: Mapping[str, np.ndarray]) -> tuple[Tokens, Tensor]:
    """The written tokens of a case, and the tensor that its gradient is taken by. Elsewhere stands NaN."""
    mask = mask_of(case)
    row, place = np.nonzero(mask)
    at = (torch.from_numpy(row), torch.from_numpy(place))
    whole = torch.from_numpy(padded(case, leaf)).requires_grad_()

    def written(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float64))[at]

    given = {ours: written(padded(case, name)) for name, ours in COLUMNS.items() if name in case["inputs"]}
    rollout = written(padded(case, "rollout_logp")) if "rollout_logp" in case["inputs"] else torch.zeros(len(row))
    tokens = Tokens(
        weights_N=written(weights_of(case, case["params"].get("agg") or "token_mean")),
        sampler_logprobs_N=rollout,
        sampled_N=torch.full((len(row),), "rollout_logp" in case["inputs"]),
        rows_N=at[0],
        num_rows=len(mask),
        columns={**given, **{name: written(values) for name, values in extra.items()}},
        logprobs_N=whole[at] if leaf == "logp" else None,
        values_N=whole[at] if leaf == "values" else None,
    )
    return tokens, whole


def outcome(out: LossOutput, whole: Tensor, mask: np.ndarray, fractions: Mapping[str, str]) -> dict[str, object]:
    out.total.backward()
    assert whole.grad is not None
    grad = whole.grad.numpy()
    assert not grad[mask == 0].any()
    metrics = {name: out.metrics[ours].value for name, ours in fractions.items() if ours in out.metrics}
    return {"loss": out.total.item(), "grad": grad, **metrics}


FRACTIONS = {
    "clip_frac": "clip_frac",
    "clip_frac_lower": "clip_lower",
    "dropped_frac": "dropped_frac",
    "approx_kl": "approx_kl",
}


def policy(
    name: str,
    settings: Settings,
    fractions: Settings = FRACTIONS,
    columns: Callable[[Case], Mapping[str, np.ndarray]] = lambda case: {},
    **fixed: object,
) -> Adapter:
    """A policy loss of ours, its settings from the params of a case (a clamp that is not named there is none)."""

    def adapter(case: Case) -> dict[str, object]:
        params = case["params"]
        named = {ours: params.get(theirs) for theirs, ours in settings.items()}
        given: dict[str, object] = {ours: value for ours, value in named.items() if value is not None}
        for optional in ("log_ratio_clamp", "log_ratio_max"):
            if optional in settings.values():
                given.setdefault(optional, None)
        tokens, whole = tokens_of(case, "logp", columns(case))
        return outcome(LOSSES[name](tokens, **given, **fixed), whole, mask_of(case), fractions)

    return adapter


def column_of(case: Case, batch: Batch, name: str) -> Column:
    return Column.per_token(name, batch, padded(case, name).ravel())


def selected(case: Case) -> dict[str, np.ndarray]:
    """The tokens that a loss by covariance treats apart."""
    params, batch = case["params"], batch_of(case)
    names = ("top_fraction", "clip_low", "clip_high", "cov_min", "cov_max", "max_fraction")
    given = {name: params[name] for name in names if params.get(name) is not None}
    loss = KlCovLoss(**given) if "top_fraction" in given else ClipCovLoss(**given)
    found = selection_column(
        batch,
        column_of(case, batch, "logp"),
        column_of(case, batch, "advantages"),
        loss,
        old=column_of(case, batch, "old_logp"),
    )
    return {"selected": found.values.reshape(mask_of(case).shape)}


def correction(kind: str) -> Callable[[Case], dict[str, np.ndarray]]:
    """Weights for the gap between the old policy and the sampler."""

    def column(case: Case) -> dict[str, np.ndarray]:
        mask, params = mask_of(case), case["params"]
        offsets = np.arange(len(mask) + 1) * mask.shape[1]
        old, rollout = padded(case, "old_logp").ravel(), padded(case, "rollout_logp").ravel()
        ratios = LogRatios.between(old, rollout, mask.ravel(), offsets)
        low, high = params.get("is_min") or 0.0, params.get("is_max") or math.inf
        if kind == "seq_mask_tis":
            weights = importance_weights(ratios, "token", log_ratio_clamp=None)
            weights = np.where(reject_geometric(ratios, low, high), 0.0, weights)
        else:
            weights = importance_weights(ratios, "token", mode=kind, lower=low, upper=high, log_ratio_clamp=None)
        return {"correction": weights.reshape(mask.shape)}

    return column


def value(case: Case) -> dict[str, object]:
    clip = case["params"].get("clip") if case["variant"] == "value.clip" else None
    tokens, whole = tokens_of(case, "values", {})
    return outcome(LOSSES["value_clip"](tokens, value_clip=clip), whole, mask_of(case), FRACTIONS)


def kl(kind: str, **fixed: object) -> Adapter:
    """A KL term; where there is a mask, its estimates are 0 outside it."""

    def adapter(case: Case) -> dict[str, object]:
        inputs, params = case["inputs"], case["params"]
        shape = np.shape(inputs["logp"])
        kept = np.asarray(inputs.get("mask", np.ones(shape))) != 0
        tensors = {n: torch.from_numpy(np.asarray(inputs[n], np.float64)) for n in inputs if n != "mask"}
        for tensor in tensors.values():
            tensor[torch.from_numpy(~kept)] = math.nan
        whole = tensors.pop("logp").requires_grad_()
        at = torch.from_numpy(kept)
        clamps = {name: params.get(name) for name in ("clamp_in", "clamp_out")}
        weights = tensors["weights"][at] if "weights" in tensors else None
        found = kl_in_loss(whole[at], tensors["ref_logp"][at], kind, weights_N=weights, **clamps, **fixed)
        found.sum().backward()
        estimates = np.zeros(shape)
        estimates[kept] = found.detach().numpy()
        assert whole.grad is not None
        return {"kl": estimates, "grad": whole.grad.numpy()}

    return adapter


def aggregation(case: Case) -> dict[str, object]:
    weights = weights_of(case, case["variant"].removeprefix("agg."))
    values = torch.from_numpy(padded(case, "values")).requires_grad_()
    kept = torch.from_numpy(mask_of(case) != 0)
    loss = (torch.from_numpy(weights)[kept] * values[kept]).sum()
    loss.backward()
    assert values.grad is not None
    return {"loss": loss.item(), "grad": values.grad.numpy()}


CLIPPED = {**CLIP, **RATIO, "dual_clip": "dual_clip", "ratio_max": "ratio_max"}
SEQUENCE = {**CLIP, "seq_log_ratio_max": "log_ratio_max"}
BOUNDS = {"ratio_min": "ratio_min", "ratio_max": "ratio_max", **RATIO}
GMPO_FRACTIONS = {"clip_frac": "clip_high", "clip_frac_lower": "clip_low", "approx_kl": "approx_kl"}

VARIANTS: dict[str, Adapter] = {
    "policy.clip": policy("clip", CLIPPED),
    "policy.dual_clip": policy("clip", CLIPPED),
    "policy.two_sided_clip": policy("clip", CLIPPED),
    "policy.clip+k3": policy("clip", {**CLIPPED, **KL}, kl_kind="k3"),
    "policy.clip+tis": policy("clip", CLIPPED, columns=correction("truncate")),
    "policy.clip+icepop": policy("clip", CLIPPED, columns=correction("icepop")),
    "policy.clip+seq_mask_tis": policy("clip", CLIPPED, columns=correction("seq_mask_tis")),
    "policy.gspo": policy("gspo", SEQUENCE),
    "policy.gspo_token": policy("gspo_token", SEQUENCE),
    "policy.gspo_mean_adv": policy("gspo", SEQUENCE, mean_advantages=True),
    "policy.cispo": policy("cispo", BOUNDS),
    "policy.sapo": policy("sapo", {"tau_pos": "tau_pos", "tau_neg": "tau_neg", **RATIO}),
    "policy.gmpo": policy(
        "gmpo", {"log_clip_low": "log_clip_low", "log_clip_high": "log_clip_high", **RATIO}, GMPO_FRACTIONS
    ),
    "policy.gpg": policy("gpg", {}),
    "policy.cpgd": policy("cpgd", {**CLIP, **RATIO}),
    "policy.kl_cov": policy("kl_cov", {"kl_coef": "cov_coef", **RATIO}, columns=selected),
    "policy.clip_cov": policy("clip_cov", {**CLIP, **RATIO}, columns=selected),
    "policy.dppo_tv": policy("dppo_tv", {**DELTAS, **RATIO}),
    "policy.dppo_kl": policy("dppo_kl", {**DELTAS, **RATIO}),
    "policy.dppo_tv_sq": policy("dppo_tv_sq", {**DELTAS, **SQUARE, **RATIO}),
    "policy.tv_sym_sq": policy("tv_sym_sq", {"delta": "delta", **SQUARE, **RATIO}),
    "policy.rollout_is_mask": policy("rollout_is_mask", BOUNDS),
    "policy.vespo": policy("vespo", {**{name: name for name in ("k_pos", "lam_pos", "k_neg", "lam_neg")}, **RATIO}),
    "value.clip": value,
    "value.mse": value,
    **{f"kl.{kind}": kl(kind) for kind in ("k1", "k2", "k3", "abs", "k1_st", "k3_st", "abs_st", "k3_weighted")},
    "kl.k2_st": kl("k2"),
    "kl.k3_score": kl("k3", gradient="value_and_score"),
    **{
        f"agg.{name}": aggregation
        for name in (
            "token_mean",
            "seq_mean_token_mean",
            "seq_mean_token_sum",
            "seq_mean_token_sum_norm",
            "prompt_mean",
        )
    },
}
