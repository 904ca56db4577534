"""Presets against the frameworks themselves: golden cases that name one come out of the algorithm with its preset.

A case is of a framework if its ``source`` names it. Params that the framework leaves to its user (bounds, weights,
lambdas, the aggregation) are given to the algorithm; what is the framework's own convention (epsilons, ``ddof``, groups
of one, dual clip, clamps, rows that count) is not, and has to come from the preset. A case with another value of these
than the framework's own is one of its options, and no preset's affair; those are counted.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from adapters_advantages import mask_of, offsets_of, token_rewards
from adapters_losses import FRACTIONS, GMPO_FRACTIONS, batch_of, outcome, tokens_of
from cases import DATA, Case, compare, load_cases

from stretto.algorithms import advantages as estimators
from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.losses import LOSSES, kl_in_loss
from stretto.config.algorithms import ALGORITHMS, GaeConfig, PolicyGradient, loss_ref
from stretto.config.algorithms.presets import PRESETS, VERSIONS

Given = Mapping[str, Any]

NAMES = {"verl": "verl", "TRL": "trl", "OpenRLHF": "openrlhf", "SkyRL": "skyrl", "NeMo-RL": "nemo-rl", "AReaL": "areal"}
NAMES |= {"prime-rl": "prime-rl", "slime": "slime"}

ESTIMATES: Mapping[str, tuple[str, Given]] = {
    "grpo.std": ("grpo", {"center": "mean", "scale": "group_std"}),
    "grpo.std_zero_singleton": ("grpo", {"center": "mean", "scale": "group_std"}),
    "grpo.std_loo": ("grpo", {}),
    "grpo.mean_only": ("grpo", {"scale": "none", "center": "mean"}),
    "grpo.batch_std": ("grpo", {"scale": "batch_std"}),
    "grpo.batch_mean_std": ("grpo", {"scale": "batch_std", "center": "batch_mean"}),
    "grpo.loo_mean_loo_dev": ("grpo", {"scale": "leave_one_out_deviation", "center": "leave_one_out"}),
    "grpo.std_floor": ("grpo", {"scale": "group_std_floor"}),
    "rloo": ("rloo", {}),
    "opo": ("opo", {}),
    "gpg": ("gpg", {}),
    "maxrl": ("maxrl", {}),
    "maxrl.no_eps": ("maxrl", {}),
    "reinforce_pp": ("reinforce-pp", {}),
    "reinforce_pp.broadcast": ("reinforce-pp", {}),
    "reinforce_pp_baseline": ("reinforce-pp", {"baseline": True}),
    "gae": ("ppo", {"whiten": False}),
    "gae.whiten": ("ppo", {}),
    "gae.decoupled": ("ppo", {}),
    "gae.length_adaptive": ("ppo", {}),
}
"""The algorithm of each variant of advantages, and what a user of it has to set."""

LOSSES_OF: Mapping[str, tuple[str, Given]] = {
    "policy.clip": ("grpo", {"dual_clip": None}),
    "policy.dual_clip": ("grpo", {}),
    "policy.two_sided_clip": ("grpo", {}),
    "policy.clip+k3": ("grpo", {}),
    "policy.gspo": ("gspo", {}),
    "policy.gspo_mean_adv": ("gspo", {}),
    "policy.cispo": ("cispo", {}),
    "policy.sapo": ("sapo", {}),
    "policy.gmpo": ("gmpo", {}),
    "policy.gpg": ("gpg", {}),
    "policy.dppo_tv_sq": ("composed", {}),
}
"""The same of losses."""

OWN = ("f_norm", "gamma", "lam", "lam_value", "clip_low", "clip_high", "ratio_min", "ratio_max", "tau_pos", "tau_neg")
OWN += ("log_clip_low", "log_clip_high", "kl_coef")
"""Params that are the user's, with our names; one that an algorithm does not have is not its affair."""
OFTEN_OFF = ("dual_clip",)
"""Conventions that some frameworks leave off by default: given where the preset has none."""
CONVENTIONS = {"eps": "epsilon", "var_floor": "epsilon", "ddof": "ddof", "singleton": "singleton"}
CONVENTIONS |= {"log_ratio_clamp": "log_ratio_clamp", "empty_rows": "empty_rows", "dual_clip": "dual_clip"}
CONVENTIONS |= {"kl_gradient": "kl_gradient"}
WEIGHTED = "weights"
"""A loss with weights of tokens is that of a correction."""


def frameworks(case: Case) -> Iterator[str]:
    """The frameworks that a source names."""
    for name, framework in NAMES.items():
        if re.search(rf"(^|; ){re.escape(name)}:", case["source"]):
            yield framework


def algorithm_of(case: Case, framework: str, kind: str, set_by_user: Given) -> PolicyGradient:
    """The algorithm with the framework's preset, and the params of the case that are the user's."""
    model, params = ALGORITHMS[kind], case["params"]
    given = {name: params[name] for name in OWN if params.get(name) is not None and name in model.model_fields}
    given |= {name: params[name] for name in OFTEN_OFF if params.get(name) is not None and name in model.model_fields}
    if params.get("lam_policy") is not None:
        given["lam"] = params["lam_policy"]
    if params.get("alpha") is not None:
        given |= {"lam": None, "length_alpha": params["alpha"]}
    if kind == "dr-grpo":
        given["norm"] = params["norm"]
    elif "agg" in params:
        given |= aggregation(params)
    if kind == "composed":
        loss = model.model_validate({"preset": framework}).policy_loss
        own = {name: params[name] for name in params if name in type(loss).model_fields}
        given["policy_loss"] = {**loss.model_dump(), **own}
    made = model.model_validate({**given, **set_by_user, "preset": framework})
    assert isinstance(made, PolicyGradient)
    return made


def aggregation(params: Given) -> dict[str, object]:
    if params["agg"] == "rows_mean":
        return {"aggregate": "seq_mean_token_mean"}
    if params["agg"] == "seq_mean_token_sum_norm":
        by_rows = params.get("divide_by_rows")
        return {"aggregate": "seq_mean_token_sum_norm" if by_rows else "token_sum_norm", "norm": params["norm"]}
    return {"aggregate": params["agg"]}


def other_option(case: Case, algorithm: PolicyGradient) -> str | None:
    """The param of a case that is not the framework's convention, if there is one."""
    for theirs, ours in CONVENTIONS.items():
        value = case["params"].get(theirs)
        part = getattr(algorithm, ours, getattr(algorithm.loss, ours, None))
        reads = hasattr(algorithm, ours) or hasattr(algorithm.loss, ours)
        if theirs == "log_ratio_clamp" and theirs in case["params"] and reads and part != value:
            return theirs
        if theirs == "empty_rows" and value == "exclude" and (np.asarray(case["inputs"]["mask"]).any(1)).all():
            continue  # the same where no row is empty
        if value is not None and reads and part != value and theirs != "log_ratio_clamp":
            if theirs == "empty_rows" and algorithm.aggregate in ("token_mean", "token_sum_norm"):
                continue
            return theirs
    return None


def estimated(case: Case, algorithm: PolicyGradient) -> dict[str, Any]:
    """Advantages and returns by the estimator of the algorithm."""
    estimator, mask, inputs = algorithm.estimator, mask_of(case), case["inputs"]
    if isinstance(estimator, GaeConfig):
        return generalised(case, estimator)
    settings = estimator.model_dump(exclude={"type"})
    if estimator.type == "reinforce_pp":
        gamma = settings.pop("gamma")
        returns = estimators.discounted_returns(token_rewards(case), mask.ravel(), offsets_of(mask), gamma=gamma)
        whitened = estimators.whiten(returns.reshape(mask.shape), mask, **settings)
        return {"returns": returns.reshape(mask.shape), "advantages": whitened}
    if estimator.type == "reinforce_pp_baseline":
        singleton = settings.pop("singleton")
        rows = estimators.group_advantages(inputs["rewards"], inputs["group"], scale="none", singleton=singleton)
        return {"advantages": estimators.whiten(rows[:, None] * np.ones(mask.shape), mask, **settings)}
    if estimator.type == "opo":
        rows = estimators.opo_advantages(inputs["rewards"], inputs["group"], mask.sum(1), **settings)
    else:
        function = getattr(estimators, f"{estimator.type}_advantages")
        rows = function(inputs["rewards"], inputs["group"], **settings)
    return {"advantages": rows[:, None] * mask}


def generalised(case: Case, estimator: GaeConfig) -> dict[str, Any]:
    mask = mask_of(case)
    offsets = offsets_of(mask)
    lam = estimator.lam
    if lam is None:
        lam = estimators.length_adaptive_lambdas(mask.ravel(), offsets, estimator.length_alpha)
    values = np.where(mask != 0, np.array(case["inputs"]["values"], np.float64), np.nan)
    both = estimators.gae(
        token_rewards(case),
        values.ravel(),
        mask.ravel(),
        offsets,
        gamma=estimator.gamma,
        lam=lam,
        lam_value=estimator.lam_value,
    )
    advantages, returns = (out.reshape(mask.shape) for out in both)
    if estimator.whiten:
        how = {name: getattr(estimator, name) for name in ("ddof", "epsilon", "stabilizer")}
        advantages = estimators.whiten(advantages, mask, **how)
    return {"advantages": advantages, "returns": returns}


def lost(case: Case, algorithm: PolicyGradient) -> dict[str, object]:
    """Loss, gradient and fractions by the loss, the terms and the aggregation of the algorithm."""
    mask, updates, batch = mask_of(case), algorithm.updates(1), batch_of(case)
    whole = aggregation_weights(batch, updates.aggregate, norm=updates.norm, empty_rows=updates.empty_rows)
    tokens, leaf = tokens_of(case, "logp", {})
    weights = torch.from_numpy(whole.values.reshape(mask.shape)[mask != 0])
    tokens = type(tokens)(**{f: getattr(tokens, f) for f in tokens.__slots__} | {"weights_N": weights})
    ref = loss_ref(algorithm.loss, algorithm.terms)
    fractions = GMPO_FRACTIONS if algorithm.type == "gmpo" else FRACTIONS
    return outcome(LOSSES[ref.use](tokens, **ref.settings), leaf, mask, fractions)


def algorithm_for(case: Case) -> tuple[str, Given]:
    """The algorithm that a case is of, and what a user of it has to set; or no algorithm."""
    kind, given = {**ESTIMATES, **LOSSES_OF}.get(case["variant"], ("", {}))
    if kind == "grpo" and case["params"].get("agg") == "seq_mean_token_sum_norm":
        return "dr-grpo", given  # whose aggregation is the preset's affair
    return kind, given


CASES = load_cases(DATA)


def covered() -> Iterator[tuple[str, str, Case]]:
    """(framework, type, case) of the cases that an algorithm with a preset has to reproduce."""
    for case in CASES:
        kind, given = algorithm_for(case)
        if not kind or WEIGHTED in case["inputs"]:
            continue
        for framework in frameworks(case):
            if kind in PRESETS[framework]:
                algorithm = algorithm_of(case, framework, kind, given)
                if other_option(case, algorithm) is None:
                    yield framework, kind, case


COVERED = list(covered())


@pytest.mark.parametrize(
    ("framework", "kind", "case"), COVERED, ids=[f"{f}:{kind}:{c['name']}" for f, kind, c in COVERED]
)
def test_a_case_of_the_framework_comes_out(framework, kind, case, record_property):
    record_property("golden", f"{framework} by preset: {kind}")
    _, given = algorithm_for(case)
    algorithm = algorithm_of(case, framework, kind, given)
    compare(case, (lost if case["variant"] in LOSSES_OF else estimated)(case, algorithm))


@pytest.mark.parametrize("framework", VERSIONS)
def test_every_framework_is_held_to_its_word(framework):
    counts = [kind for of, kind, _ in COVERED if of == framework]
    assert len(counts) >= {"prime-rl": 5, "trl": 10, "openrlhf": 10}.get(framework, 15)


@pytest.mark.parametrize("framework", [f for f in VERSIONS if f not in ("trl", "prime-rl")])
def test_kl_is_clamped_as_there(framework):
    names = [name for name, ours in NAMES.items() if ours == framework]
    found = 0
    for case in CASES:
        kind = case["variant"].removeprefix("kl.")
        if kind not in ("k1", "k2", "k3") or not re.search(rf"(^|; ){re.escape(names[0])}:", case["source"]):
            continue
        if "mask" in case["inputs"] or f"{names[0]}:calculate_kl(no clamp)" in case["source"] or kind == "k1":
            continue  # an option of it; and k1 is none of ours in the loss
        terms = ALGORITHMS["grpo"].model_validate({"preset": framework, "kl_coef": 0.1, "kl_kind": kind}).terms
        logp = torch.tensor(case["inputs"]["logp"], dtype=torch.float64, requires_grad=True)
        ref = torch.tensor(case["inputs"]["ref_logp"], dtype=torch.float64)
        kl = kl_in_loss(logp, ref, terms.kl_kind, clamp_in=terms.kl_clamp_in, clamp_out=terms.kl_clamp_out)
        kl.sum().backward()
        assert logp.grad is not None
        compare(case, {"kl": kl.detach().numpy(), "grad": logp.grad.numpy()})
        found += 1
    assert found >= 4
