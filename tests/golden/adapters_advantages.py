"""Golden cases of advantages and returns, and of the KL penalty in the reward."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from cases import Adapter, Case, padded

from stretto.algorithms.advantages import (
    broadcast_rows,
    cpgd_advantages,
    discounted_returns,
    gae,
    gdpo_advantages,
    gpg_advantages,
    group_advantages,
    length_adaptive_lambdas,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    place_rewards,
    remax_advantages,
    rewards_with_kl,
    rloo_advantages,
    whiten,
)
from stretto.algorithms.controllers import adapted_coef


def mask_of(case: Case) -> np.ndarray:
    return np.asarray(case["inputs"]["mask"], np.uint8)


def offsets_of(mask: np.ndarray) -> np.ndarray:
    return np.arange(mask.shape[0] + 1) * mask.shape[1]


def given(case: Case, **names: str) -> dict[str, Any]:
    """The params that a case uses, under our names; one that is null or absent keeps our default."""
    return {ours: case["params"][theirs] for ours, theirs in names.items() if case["params"].get(theirs) is not None}


def whitening(case: Case) -> dict[str, Any]:
    if case["params"].get("var_floor") is not None:
        return {**given(case, ddof="ddof", epsilon="var_floor"), "stabilizer": "variance_floor"}
    return given(case, ddof="ddof", epsilon="eps")


def by_row(function: Any, **settings: Any) -> Adapter:
    """A group-relative estimator of ours, its advantages on every token of the row."""

    def adapter(case: Case) -> Mapping[str, Any]:
        names = {"epsilon": "eps", "ddof": "ddof", "singleton": "singleton", "f_norm": "f_norm", "cap": "cap"}
        found = {**given(case, **names), **settings}
        if "divide_by_std" in case["params"]:
            found["scale"] = "group_std" if case["params"]["divide_by_std"] else "none"
        rows = function(case["inputs"]["rewards"], case["inputs"]["group"], **found)
        return {"advantages": rows[:, None] * mask_of(case)}

    return adapter


def opo(case: Case) -> Mapping[str, Any]:
    lengths = mask_of(case).sum(1)
    rows = opo_advantages(
        case["inputs"]["rewards"], case["inputs"]["group"], lengths, **given(case, singleton="singleton")
    )
    return {"advantages": rows[:, None] * mask_of(case)}


def gdpo(case: Case) -> Mapping[str, Any]:
    rewards = np.asarray(case["inputs"]["reward_components"], np.float64)
    groups, weights = case["inputs"]["group"], case["params"].get("weights") or [1.0] * len(rewards)
    out = gdpo_advantages(
        rewards,
        groups,
        weights,
        leave_one_out=bool(case["params"].get("leave_one_out")),
        **given(case, epsilon="eps", ddof="ddof"),
    )
    return {"advantages": out[:, None] * mask_of(case)}


def whitened_rows(case: Case, *, baseline: bool) -> Mapping[str, Any]:
    mask = mask_of(case)
    rows = np.asarray(case["inputs"]["rewards"], np.float64)
    if baseline:
        rows = group_advantages(
            rows, case["inputs"]["group"], scale="none", **given(case, singleton="singleton", epsilon="eps")
        )
    tokens = broadcast_rows(rows, mask.ravel(), offsets_of(mask))
    return {"advantages": whiten(tokens, mask.ravel(), **whitening(case)).reshape(mask.shape)}


def token_rewards(case: Case) -> np.ndarray:
    """The rewards of tokens [rows x T], given as such, or as rewards of rows less a KL penalty."""
    mask = mask_of(case)
    if "token_rewards" in case["inputs"]:
        return padded(case, "token_rewards").ravel()
    rewards, offsets = np.asarray(case["inputs"]["rewards"], np.float64), offsets_of(mask)
    if "kl" not in case["inputs"]:
        return place_rewards(rewards, mask.ravel(), offsets)
    clip = case["params"].get("clip")
    return rewards_with_kl(
        rewards,
        padded(case, "kl").ravel(),
        mask.ravel(),
        offsets,
        kl_coef=case["params"].get("kl_coef") or 0.0,
        clip=None if clip is None else tuple(clip),
    )


def discounted(case: Case, gaps: Any) -> np.ndarray:
    mask = mask_of(case)
    return discounted_returns(
        token_rewards(case), mask.ravel(), offsets_of(mask), gaps=gaps, **given(case, gamma="gamma")
    ).reshape(mask.shape)


def reinforce_pp(case: Case, gaps: Any) -> Mapping[str, Any]:
    returns = discounted(case, gaps)
    return {"returns": returns, "advantages": whiten(returns, mask_of(case), **whitening(case))}


def remax(case: Case) -> Mapping[str, Any]:
    mask = mask_of(case)
    both = remax_advantages(token_rewards(case), case["inputs"]["baseline"], mask.ravel(), offsets_of(mask))
    return {name: out.reshape(mask.shape) for name, out in zip(("advantages", "returns"), both, strict=True)}


def gae_case(case: Case, *, gaps: Any = "skip", whitens: bool = False) -> Mapping[str, Any]:
    params, mask = case["params"], mask_of(case)
    offsets = offsets_of(mask)
    lam = params.get("lam", params.get("lam_policy"))
    if params.get("alpha") is not None:
        lam = length_adaptive_lambdas(mask.ravel(), offsets, params["alpha"])
    advantages, returns = gae(
        token_rewards(case),
        padded(case, "values").ravel(),
        mask.ravel(),
        offsets,
        gamma=1.0 if params.get("gamma") is None else params["gamma"],
        lam=lam,
        lam_value=params.get("lam_value"),
        gaps=gaps,
    )
    if whitens:
        advantages = whiten(advantages, mask.ravel(), **whitening(case))
    return {"advantages": advantages.reshape(mask.shape), "returns": returns.reshape(mask.shape)}


def kl_in_reward(case: Case) -> Mapping[str, Any]:
    return {"token_rewards": token_rewards(case).reshape(mask_of(case).shape)}


def adaptive_coef(case: Case) -> Mapping[str, Any]:
    params = case["params"]
    coefs = [params["init"]]
    for kl, steps in zip(case["inputs"]["kl"], case["inputs"]["steps"], strict=True):
        coefs.append(adapted_coef(coefs[-1], kl, target=params["target"], horizon=params["horizon"], steps=steps))
    return {"coef": coefs[1:]}


VARIANTS: dict[str, Adapter] = {
    "grpo.std": by_row(group_advantages),
    "grpo.std_floor": by_row(group_advantages, scale="group_std_floor"),
    "grpo.std_zero_singleton": by_row(group_advantages),
    "grpo.std_loo": by_row(group_advantages, center="leave_one_out", scale="leave_one_out_std"),
    "grpo.loo_mean_loo_dev": by_row(group_advantages, center="leave_one_out", scale="leave_one_out_deviation"),
    "grpo.batch_std": by_row(group_advantages, scale="batch_std"),
    "grpo.batch_mean_std": by_row(group_advantages, center="batch_mean", scale="batch_std"),
    "grpo.mean_only": by_row(group_advantages, scale="none"),
    "grpo.passk": by_row(pass_at_k_advantages),
    "rloo": by_row(rloo_advantages),
    "opo": opo,
    "gpg": by_row(gpg_advantages, rows="nonzero"),
    "maxrl": by_row(maxrl_advantages),
    "maxrl.no_eps": by_row(maxrl_advantages),
    "cpgd_weight": by_row(cpgd_advantages, count="rows"),
    "gdpo": gdpo,
    "reinforce_pp": partial(reinforce_pp, gaps="skip"),
    "reinforce_pp.reset_on_gap": partial(reinforce_pp, gaps="wrongly_reset"),
    "reinforce_pp.broadcast": partial(whitened_rows, baseline=False),
    "reinforce_pp_baseline": partial(whitened_rows, baseline=True),
    "remax": remax,
    "returns.discounted": lambda case: {"returns": discounted(case, "count")},
    "gae": gae_case,
    "gae.whiten": partial(gae_case, whitens=True),
    "gae.decoupled": gae_case,
    "gae.length_adaptive": gae_case,
    "gae.zero_masked": partial(gae_case, gaps="wrongly_value_zero"),
    "kl.in_reward": kl_in_reward,
    "kl.adaptive_coef": adaptive_coef,
}
