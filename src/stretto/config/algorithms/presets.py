"""What other frameworks compute under the name of an algorithm, where it differs from ours: ``algorithm.preset``.

A preset changes defaults: a field that a recipe sets keeps its value. It is about conventions (what a group of one is
worth, where an epsilon goes, which rows are counted), not about tuning: clip bounds, learning rates and KL weights stay
ours. The golden vectors, made by these frameworks' own functions, hold a preset to its word (``tests/golden``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from stretto.config.algorithms.aggregation import COUNTLESS
from stretto.config.algorithms.estimators import GroupAdvantages
from stretto.config.algorithms.losses import DppoTvSqLoss
from stretto.errors import nearest

__all__ = [
    "PRESETS",
    "VERSIONS",
    "Convention",
    "Framework",
    "convention_of",
    "defects_of",
    "preset_values",
    "presets_of",
]

Framework: TypeAlias = Literal["verl", "trl", "openrlhf", "skyrl", "nemo-rl", "areal", "prime-rl", "slime"]

VERSIONS: Mapping[Framework, str] = MappingProxyType(
    {
        "verl": "0.8.0.dev",
        "trl": "1.10.0.dev0",
        "openrlhf": "0.11.0",
        "skyrl": "its main branch, 2026",
        "nemo-rl": "0.6.0",
        "areal": "1.0.4",
        "prime-rl": "0.8.0",
        "slime": "its main branch, 2026",
    }
)
"""The version of each framework that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a framework computes an algorithm: defaults in place of ours, and what of it is not reproduced."""

    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    not_here: tuple[str, ...] = ()


SINGLES = "a group of one has its own reward as advantage, with nothing to compare it with"
DEFECTS: Mapping[tuple[str, object], str] = {
    ("singleton", "raw"): SINGLES,
    ("singleton", "raw_over_1_plus_eps"): SINGLES,
    ("empty_rows", "include"): "rows without a token to train on count in the mean over rows, and weaken the others",
    ("rows", "nonzero"): "the factor counts rows whose reward is not 0, so a constant added to all rewards changes it",
}
"""What is a fault, and is reproduced where a preset sets a field so."""

CUT = "there a tool's answer cuts the return, so that what was written before it never sees the reward"
GAPS = "there each token of a tool's answer is one more step of discount"
PHANTOM = "there tokens of a tool's answer are steps of value 0"
DISTANCE = "its clip settings are distances from 1: a low of 0.2 is ratio_min=0.8 here, a high of 0.28 ratio_max=1.28"

KEPT: Mapping[str, object] = {"singleton": "raw_over_1_plus_eps"}
KL_K3: Mapping[str, object] = {"kl_clamp_in": 20.0, "kl_clamp_out": 10.0}
"""Clamps that verl, SkyRL and slime have on k3 alone: they are left out with another ``kl_kind``."""
DUAL: Mapping[str, object] = {"dual_clip": 3.0}
RAW_RATIO: Mapping[str, object] = {"log_ratio_clamp": None}
RAW_SEQUENCE: Mapping[str, object] = {"log_ratio_max": None}
COUNTED: Mapping[str, object] = {"empty_rows": "include"}
TOKENS: Mapping[str, object] = {"aggregate": "token_mean"}
ROWS: Mapping[str, object] = {"aggregate": "seq_mean_token_mean"}
OTHERS: Mapping[str, object] = {"center": "leave_one_out", "scale": "leave_one_out_std"}
FLOORED: Mapping[str, object] = {"ddof": 0, "epsilon": 1e-8, "stabilizer": "variance_floor"}


def _is(*parts: Mapping[str, object], not_here: tuple[str, ...] = ()) -> Convention:
    settings = {name: value for part in parts for name, value in part.items()}
    return Convention(settings=settings, not_here=not_here)


_VERL_GROUPS = (KEPT, KL_K3)
_SKYRL_GROUPS = (KEPT, KL_K3, COUNTED)
_NEMO_KL: Mapping[str, object] = {**KL_K3, "kl_gradient": "value_and_score"}
_ADDED: Mapping[Framework, Mapping[str, object]] = {
    "trl": {"epsilon": 1e-4},
    "openrlhf": {"epsilon": 1e-9},
    "areal": {"epsilon": 1e-5},
}
"""What is added to a standard deviation."""

PRESETS: Mapping[Framework, Mapping[str, Convention]] = {
    "verl": {
        "grpo": _is(*_VERL_GROUPS, DUAL),
        "dr-grpo": _is({"singleton": "raw", "aggregate": "token_sum_norm"}, KL_K3, DUAL),
        "dapo": _is(*_VERL_GROUPS, DUAL),
        "gspo": _is(*_VERL_GROUPS),
        "cispo": _is(*_VERL_GROUPS, not_here=(DISTANCE,)),
        "sapo": _is(*_VERL_GROUPS),
        "gmpo": _is(*_VERL_GROUPS, COUNTED, RAW_RATIO),
        "rloo": _is({"singleton": "raw"}, TOKENS, DUAL),
        "reinforce-pp": _is({"singleton": "raw"}, DUAL, not_here=(CUT,)),
        "remax": _is(TOKENS, DUAL),
        "opo": _is({"singleton": "raw"}, TOKENS, KL_K3),
        "gpg": _is({"singleton": "raw", "rows": "nonzero"}, KL_K3),
        "ppo": _is(DUAL),
    },
    "trl": {
        "grpo": _is(_ADDED["trl"], RAW_RATIO, COUNTED),
        "dr-grpo": _is(RAW_RATIO, COUNTED),
        "dapo": _is(_ADDED["trl"], RAW_RATIO, COUNTED),
        "gspo": _is(_ADDED["trl"], RAW_SEQUENCE, COUNTED),
        "cispo": _is(_ADDED["trl"], RAW_RATIO, COUNTED),
        "sapo": _is(_ADDED["trl"], RAW_RATIO, COUNTED),
        "rloo": _is(not_here=("there the ratio of a whole row is clipped: the same with one update a step",)),
    },
    "openrlhf": {
        "grpo": _is(_ADDED["openrlhf"], KL_K3),
        "dapo": _is(_ADDED["openrlhf"], KL_K3),
        "gspo": _is(_ADDED["openrlhf"], KL_K3),
        "reinforce-pp": _is(FLOORED, not_here=(GAPS,)),
        "ppo": _is(FLOORED, not_here=(PHANTOM,)),
    },
    "skyrl": {
        "grpo": _is(*_SKYRL_GROUPS),
        "dr-grpo": _is({"singleton": "raw"}, KL_K3, COUNTED),
        "dapo": _is(*_SKYRL_GROUPS),
        "gspo": _is(*_SKYRL_GROUPS),
        "cispo": _is(*_SKYRL_GROUPS, not_here=(DISTANCE,)),
        "sapo": _is(*_SKYRL_GROUPS),
        "rloo": _is(TOKENS),
        "reinforce-pp": _is(not_here=(CUT,)),
        "maxrl": _is({"epsilon": 1e-6}, KL_K3, COUNTED),
        "ppo": _is(COUNTED),
    },
    "nemo-rl": {
        "grpo": _is(OTHERS, RAW_RATIO, _NEMO_KL),
        "dapo": _is(OTHERS, RAW_RATIO, _NEMO_KL),
        "gspo": _is(OTHERS, RAW_SEQUENCE, _NEMO_KL),
        "cispo": _is(OTHERS, RAW_RATIO, _NEMO_KL, not_here=(DISTANCE,)),
        "rloo": _is(TOKENS, RAW_RATIO),
        "reinforce-pp": _is(FLOORED, RAW_RATIO),
        "ppo": _is({"whiten": False}, RAW_RATIO),
    },
    "areal": {
        "grpo": _is(_ADDED["areal"], RAW_RATIO, KL_K3),
        "dapo": _is(_ADDED["areal"], RAW_RATIO, KL_K3),
        "gspo": _is(_ADDED["areal"], RAW_SEQUENCE, KL_K3, TOKENS, {"mean_advantages": True}),
        "sapo": _is(_ADDED["areal"], RAW_RATIO, KL_K3, TOKENS),
        "ppo": _is({"ddof": 0, "epsilon": 1e-5, "stabilizer": "add_to_std"}, RAW_RATIO),
    },
    "prime-rl": {
        "grpo": _is(
            {"scale": "none"},
            not_here=(
                "its loss is not a clipped ratio but dppo_tv_sq: that is algorithm.type=composed with its preset",
            ),
        ),
        "maxrl": _is(),
        "composed": _is({"advantages": GroupAdvantages(scale="none"), "policy_loss": DppoTvSqLoss()}),
    },
    "slime": {
        "grpo": _is(ROWS, RAW_RATIO, KL_K3),
        "gspo": _is(RAW_SEQUENCE, KL_K3),
        "cispo": _is(ROWS, RAW_RATIO, KL_K3, not_here=(DISTANCE,)),
        "reinforce-pp": _is(ROWS, RAW_RATIO, not_here=(GAPS,)),
        "ppo": _is(ROWS, RAW_RATIO),
    },
}
"""Of each framework the conventions by our ``algorithm.type``; one that is empty agrees with ours."""

_ON_K3_ALONE: frozenset[Framework] = frozenset({"verl", "skyrl", "slime"})


def presets_of(kind: str) -> Iterator[Framework]:
    """The frameworks that have a convention for the algorithm of this type."""
    return (name for name in get_args(Framework) if kind in PRESETS[name])


def convention_of(framework: str, kind: str) -> Convention:
    """The convention. Raises ValueError for a framework that has none for the type, or that is not known."""
    known = [str(name) for name in presets_of(kind)]
    if framework in known:
        return PRESETS[framework][kind]  # pyright: ignore[reportArgumentType]
    given = f"algorithm.preset={framework}"
    if framework not in PRESETS:
        raise ValueError(f"{given} is not known.{nearest(framework, list(PRESETS))}")
    if not known:
        raise ValueError(f"{given} says nothing of algorithm.type={kind}, and no preset does. Leave it out.")
    types = ", ".join(PRESETS[framework])  # pyright: ignore[reportArgumentType]
    raise ValueError(
        f"{given} says nothing of algorithm.type={kind}. Presets of {kind}: {', '.join(known)}; the types that "
        f"{framework} is known for: {types}."
    )


def preset_values(
    framework: str, kind: str, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, object]:
    """The fields that a preset sets, with their values: those that were not ``given``, and that are read beside the
    others. ``defaults`` are ours."""
    convention = convention_of(framework, kind)
    values = {name: value for name, value in convention.settings.items() if name not in given}
    both = {**defaults, **values, **given}
    if both.get("aggregate") in COUNTLESS:
        values.pop("empty_rows", None)
    if framework in _ON_K3_ALONE and not str(both.get("kl_kind")).startswith("k3"):
        values = {name: value for name, value in values.items() if not name.startswith("kl_clamp")}
    if both.get("scale") == "none" and values.get("singleton") == "raw_over_1_plus_eps":
        values["singleton"] = "raw"
    return values


def defects_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """The known defects that fields with these values reproduce, a sentence each."""
    found = (DEFECTS.get((name, value)) for name, value in values.items() if isinstance(value, str))
    return tuple(dict.fromkeys(text for text in found if text is not None))
