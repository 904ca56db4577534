"""Which of the accepted forms a reward has, by the names of its parameters. It is never called to find out.

| form | parameters |
|---|---|
| ours | ``(prompt, trajectory)``, ``context`` too; or these two by their first letters, ``(p, t)``, ``(_, traj)`` |
| a group's | ``(prompt, trajectories)`` or ``(group)``, ``context`` too |
| TRL's | ``(prompts, completions, **columns)``, with ``completion_ids``, ``trainer_state``, ``log_metric`` if wanted |
| verl's | ``(data_source, solution_str, ground_truth, extra_info=None)`` |

Any other parameter needs a default or a setting.
"""

import inspect
from collections.abc import Collection
from functools import partial

from stretto.environments.rewards.contract import Part, Reward, Signature, reward_name
from stretto.errors import ConfigError

__all__ = ["FORMS", "bind", "passed_names", "signature_of"]

FORMS = (
    "(prompt, trajectory), (prompt, trajectories) or (group), with context too or without the prompt, TRL's "
    "(prompts, completions, **columns), or verl's (data_source, solution_str, ground_truth, extra_info=None)"
)
"""The accepted forms, for messages."""

_OURS = frozenset({"prompt", "trajectory", "context"})
_GROUPS = frozenset({"prompt", "trajectories", "group", "context"})
_VERLS = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})
_TRLS = frozenset({"prompts", "completions", "completion_ids", "trainer_state", "log_metric"})
_TRL_UNKNOWN = frozenset({"log_extra", "environments"})
"""What TRL passes and Stretto has nothing for."""

_RESERVED = frozenset({"mean", "min", "max"})
"""Names of scores that the metrics reward/mean, reward/min and reward/max already have."""


def bind(reward: Reward, name: str | None = None, *, weight: float = 1.0) -> Part:
    """``reward`` under a name (its own if None), its signature recognised. ConfigError if it has no known one."""
    name = reward_name(reward) if name is None else name
    if name in _RESERVED:
        raise ConfigError(
            f"a reward cannot be called {name!r}, since reward/{name} is a metric of all rewards. Give it another name."
        )
    return Part(name=name, function=reward, signature=signature_of(reward, name), weight=weight)


def signature_of(reward: Reward, name: str) -> Signature:
    """How ``reward`` is to be called. Raises ConfigError naming its parameters and the accepted forms."""
    try:
        parameters = list(inspect.signature(reward).parameters.values())
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the reward {name!r} does not say what it takes ({error}). Wrap it in a function of {FORMS}."
        ) from error
    kinds = inspect.Parameter
    named = [p for p in parameters if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    rest = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    names = [p.name for p in named if p.name not in _preset(reward)]
    missing = [p.name for p in named if p.default is kinds.empty and p.name not in _preset(reward)]
    if any(p.kind is kinds.POSITIONAL_ONLY for p in named):
        raise ConfigError(f"the reward {name!r} takes parameters by place only ({_shown(parameters)}). Remove the '/'.")
    if "trajectory" in names:
        _refuse_unknown(name, parameters, missing, _OURS)
        plain = [p for p in names if p in _OURS] == ["prompt", "trajectory"] and names[:2] == ["prompt", "trajectory"]
        return Signature(form="trajectory", names=_OURS & set(names), plain=plain and _by_place(named))
    if "trajectories" in names or "group" in names:
        _refuse_unknown(name, parameters, missing, _GROUPS)
        return Signature(form="group", names=_GROUPS & set(names))
    if "solution_str" in names:
        _refuse_unknown(name, parameters, missing, _VERLS)
        return Signature(form="verl", names=_VERLS & set(names))
    if "completions" in names:
        _refuse_trl(name, missing)
        required = frozenset(missing) - _TRLS
        return Signature(form="trl", names=frozenset(names), required=required, rest=rest)
    if _abbreviated(names, missing) and _by_place(named):
        return Signature(form="trajectory", names=frozenset({"prompt", "trajectory"}), plain=True)
    raise ConfigError(f"the reward {name!r} takes {_shown(parameters)}, which is none of the accepted forms: {FORMS}.")


def passed_names(reward: Reward) -> frozenset[str]:
    """The parameters of ``reward`` that a call fills, so that settings are not meant for them."""
    parameters = inspect.signature(reward).parameters.values()
    names = [p.name for p in parameters]
    missing = [p.name for p in parameters if p.default is p.empty]
    by_letter = frozenset(names[:2]) if _abbreviated(names, missing) else frozenset[str]()
    return (_OURS | _GROUPS | _VERLS | _TRLS) & set(names) | by_letter


def _abbreviated(names: list[str], missing: list[str]) -> bool:
    """Whether the two parameters that a call must give are prompt and trajectory by their first letters (or ``_``)."""
    full = ("prompt", "trajectory")
    return (
        len(missing) == 2
        and names[:2] == missing
        and all(name.startswith("_") or word.startswith(name) for name, word in zip(missing, full, strict=True))
    )


def _preset(reward: Reward) -> Collection[str]:
    """The parameters that settings have filled already."""
    return reward.keywords if isinstance(reward, partial) else ()


def _by_place(named: list[inspect.Parameter]) -> bool:
    return all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in named[:2])


def _refuse_unknown(name: str, parameters: list[inspect.Parameter], missing: list[str], known: Collection[str]) -> None:
    unknown = [parameter for parameter in missing if parameter not in known]
    if unknown:
        raise ConfigError(
            f"the reward {name!r} takes {_shown(parameters)}, and nothing is known to pass for {', '.join(unknown)}. "
            f"Give it a default or set it in `with:`; the accepted forms are {FORMS}."
        )


def _refuse_trl(name: str, missing: list[str]) -> None:
    unknown = sorted(_TRL_UNKNOWN & set(missing))
    if unknown:
        raise ConfigError(
            f"the reward {name!r} needs {', '.join(unknown)}, which only TRL passes. Give it a default; of what TRL "
            f"passes Stretto has {', '.join(sorted(_TRLS))} and the columns of the data."
        )


def _shown(parameters: list[inspect.Parameter]) -> str:
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return f"({', '.join(marks.get(p.kind, '') + p.name for p in parameters)})"
