"""Golden cases of metrics and of balancing."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from cases import Adapter, Case, padded

from stretto.algorithms.advantages import explained_variance, masked_moments, whiten
from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.estimates import consensus_at, extremes, majority, pass_all, pass_at
from stretto.algorithms.shaping import overlong_charge
from stretto.backends.torch.logprobs import token_logprobs
from stretto.data.balance import pack_bins, partition
from stretto.types import Batch, Group, Key, Prompt, Trajectory


def given(case: Case, **names: str) -> dict[str, Any]:
    """The params that a case uses, under our names; one that is null or absent keeps our default."""
    return {ours: case["params"][theirs] for ours, theirs in names.items() if case["params"].get(theirs) is not None}


def batch_of(mask: np.ndarray) -> Batch:
    """A trajectory, in a group of its own, for each row of a mask."""
    prompt = Prompt(uid="p", text="p", token_ids=np.zeros(1, np.int32))
    rows = [
        Trajectory(
            key=Key(row, 0),
            token_ids_T=np.zeros(len(mask_T), np.int32),
            mask_T=mask_T,
            logprobs_T=np.zeros(len(mask_T), np.float32),
            versions=(),
            finish="stop",
        )
        for row, mask_T in enumerate(mask)
    ]
    return Batch(groups=tuple(Group(draw=t.key.draw, prompt=prompt, trajectories=(t,)) for t in rows))


def pass_mean(case: Case) -> Mapping[str, Any]:
    tried = np.reshape(case["inputs"]["rewards"], (-1, case["params"]["samples_per_prompt"]))
    chances = [pass_at(case["params"]["k"], len(rewards), int(np.count_nonzero(rewards))) for rewards in tried]
    return {"value": np.mean(chances)}


def majority_value(case: Case) -> Mapping[str, Any]:
    winner = majority(case["inputs"]["answers"])
    return {"value": 0.0 if winner is None else case["inputs"]["rewards"][winner]}


def best_worst(case: Case) -> Mapping[str, Any]:
    found = extremes(
        case["params"]["n"], case["inputs"]["scores"], with_replacement=bool(case["params"]["with_replacement"])
    )
    return {name: getattr(found, name) for name in ("best_mean", "best_std", "worst_mean", "worst_std")}


def logprobs_and_entropy(case: Case, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Of logits [..., V], through a head that is the identity."""
    logits = np.asarray(case["inputs"]["logits"], np.float64)
    rows = torch.from_numpy(logits.reshape(-1, logits.shape[-1]))
    targets = torch.zeros(len(rows), dtype=torch.int64) if labels is None else torch.from_numpy(labels.ravel())
    temperature = case["params"].get("temperature") or 1.0
    inverse = torch.full((len(rows),), 1.0 / temperature, dtype=torch.float64)
    both = token_logprobs(rows, torch.eye(rows.shape[1], dtype=torch.float64), targets, inverse)
    logp, entropy = (out.numpy().reshape(logits.shape[:-1]) for out in both)
    return logp, entropy


def entropy_mean(case: Case) -> Mapping[str, Any]:
    mask = np.asarray(case["inputs"]["mask"], np.uint8)
    weights = aggregation_weights(batch_of(mask), case["params"].get("agg") or "token_mean")
    kept = mask != 0
    return {"value": (weights.values.reshape(mask.shape)[kept] * logprobs_and_entropy(case)[1][kept]).sum()}


def token_logp(case: Case) -> Mapping[str, Any]:
    return {"value": logprobs_and_entropy(case, np.asarray(case["inputs"]["labels"], np.int64))[0]}


def masked_stats(case: Case) -> Mapping[str, Any]:
    values, mask = padded(case, "values"), case["inputs"]["mask"]
    mean, var = masked_moments(values, mask, **given(case, ddof="ddof"))
    return {"mean": mean, "var": var, "whitened": whiten(values, mask, **given(case, ddof="ddof", epsilon="eps"))}


def normalized(case: Case) -> Mapping[str, Any]:
    settings = given(case, epsilon="eps")
    return {
        "normalized": whiten(
            padded(case, "values"), case["inputs"]["mask"], ddof=0, stabilizer="add_to_std", **settings
        )
    }


def critic(case: Case) -> Mapping[str, Any]:
    both = padded(case, "values"), padded(case, "returns")
    return {"value": explained_variance(*both, case["inputs"]["mask"], **given(case, ddof="ddof"))}


def balanced(case: Case) -> Mapping[str, Any]:
    """Holds what no vector says: every index once, no part empty, counts equal if asked for."""
    lengths, equal_size = case["inputs"]["lengths"], bool(case["params"].get("equal_size"))
    parts = partition(lengths, case["params"]["k"], equal_size=equal_size)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    sizes = [len(part) for part in parts]
    assert len(parts) == case["params"]["k"] and min(sizes) > 0
    assert not equal_size or max(sizes) - min(sizes) <= (len(lengths) % len(parts) > 0)
    return {"at_most": max(sum(lengths[i] for i in part) for part in parts)}


def binned(case: Case) -> Mapping[str, Any]:
    lengths, capacity = case["inputs"]["lengths"], case["params"]["capacity"]
    bins = pack_bins(lengths, capacity)
    assert sorted(i for each in bins for i in each) == list(range(len(lengths)))
    assert max(sum(lengths[i] for i in each) for each in bins) <= capacity
    return {"at_most": len(bins)}


def overlong(case: Case) -> dict[str, object]:
    """Rewards less what the lengths are charged, without the cap that the paper has."""
    inputs, params = case["inputs"], case["params"]
    settings = {"max_tokens": params["max_len"], "buffer": params["buffer"], "penalty": params["factor"]}
    charges = [overlong_charge(length, **settings, capped=False) for length in inputs["lengths"]]
    return {"rewards": np.asarray(inputs["rewards"]) - charges}


VARIANTS: dict[str, Adapter] = {
    "shaping.overlong": overlong,
    "pass_at_k": lambda case: {
        "value": pass_at(case["params"]["k"], int(case["inputs"]["n"]), int(case["inputs"]["correct"]))
    },
    "pass_all_k": lambda case: {
        "value": pass_all(case["params"]["k"], int(case["inputs"]["n"]), int(case["inputs"]["correct"]))
    },
    "pass_at_k.mean": pass_mean,
    "cons_at_k": lambda case: {
        "value": consensus_at(case["params"]["k"], case["inputs"]["answers"], case["inputs"]["rewards"])
    },
    "majority": majority_value,
    "best_worst_at_n": best_worst,
    "entropy": lambda case: {"value": logprobs_and_entropy(case)[1]},
    "entropy.mean": entropy_mean,
    "token_logp": token_logp,
    "masked_stats": masked_stats,
    "masked_stats.ddof0": normalized,
    "explained_variance": critic,
    "balance.partition": balanced,
    "balance.bins": binned,
}
