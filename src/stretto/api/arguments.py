"""From the arguments of a Python call to a recipe, and the objects that go beside it because no file can name them.

Owns what ``stretto.train`` and ``stretto.session`` take. It runs nothing.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from stretto.config.fields import given_tree
from stretto.config.load import recipe_from_mapping
from stretto.config.merging import merge
from stretto.config.reading import SUFFIXES, has_key, read_layers
from stretto.config.recipe import Recipe
from stretto.environments.contract import Factory
from stretto.environments.rewards import Reward, reward_name
from stretto.errors import ConfigError
from stretto.graph import Workflow
from stretto.recipes import FOLDER, packaged
from stretto.runtime.build import Given
from stretto.runtime.filters import GroupFilter
from stretto.types import Prompt
from stretto.workflows.builtin import WORKFLOWS

__all__ = ["Asked", "PromptsLike", "RewardLike", "What", "ask", "given_prompts", "given_reward", "with_model"]

What: TypeAlias = str | Workflow | Recipe | Mapping[str, object]
PromptsLike: TypeAlias = Iterable[str | Mapping[str, object] | Prompt] | Callable[[], Iterable[object]]
RewardLike: TypeAlias = Reward | str | Sequence[Reward] | Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A recipe, the objects given in place of names in it, and the word a run of it is named after."""

    recipe: Recipe
    given: Given
    hint: str


def ask(
    what: What,
    sections: Mapping[str, object],
    *,
    prompts: PromptsLike | Mapping[str, object] | None = None,
    reward: RewardLike | None = None,
    endless: bool = False,
) -> Asked:
    """What a call asks for.

    ``what``: a workflow of one's own, the name of a built-in one or of an algorithm, a packaged recipe, a recipe's
    file, a workflow's file or ``module:function``, nested mappings, or a Recipe. ``sections`` go over it: a mapping
    sets keys of its section, None takes a section out; ``environment`` may be a class or its name, ``filter`` a
    function or its name. ``endless``: the caller has a loop of its own, so a recipe without ``steps`` and ``epochs``
    gets one step, unless its learning rate decays over them. Raises ConfigError for what no recipe has.
    """
    opponent, chosen = _object_of(sections.get("environment")), _object_of(sections.get("filter"))
    given = Given(
        workflow=what if isinstance(what, Workflow) else None,
        prompts=given_prompts(prompts),
        reward=given_reward(reward),
        environment=cast("Factory", opponent) if callable(opponent) else None,
        filter=cast("GroupFilter", chosen) if callable(chosen) else None,
    )
    tree = _begun(what)
    if isinstance(prompts, Mapping) and given_prompts(prompts) is not None:
        named = {key: value for key, value in prompts.items() if key != "use"}
        tree["prompts"] = {"type": "python", "held_out": 0.0, **named}
    elif isinstance(prompts, Mapping):
        tree["prompts"] = dict(prompts)
    elif prompts is not None:
        tree["prompts"] = {"type": "python", "held_out": 0.0}
    if reward is not None:
        tree["reward"] = _reward_section(reward, tree.get("reward"))
    for name, value in sections.items():
        value = _section_of(value) if name in ("environment", "filter") else value
        tree = merge(tree, {name: dict(value) if isinstance(value, Mapping) else value})
    if endless and tree.get("steps") is None and tree.get("epochs") is None and not _decays(tree.get("backend")):
        tree["steps"] = 1
    return Asked(recipe=recipe_from_mapping(tree), given=given, hint=_hint(what))


def given_prompts(prompts: PromptsLike | Mapping[str, object] | None) -> object | None:
    """The objects among what was given as prompts: all of it, or what a section has under ``use`` if that is no name.

    So ``prompts={"use": rows, "prompt": "question"}`` says how the columns of objects are read.
    """
    if not isinstance(prompts, Mapping):
        return prompts
    used = prompts.get("use")
    return None if isinstance(used, str) else used


def with_model(
    sections: Mapping[str, object], model: str | Mapping[str, object] | None, held_out: float | None
) -> dict[str, object]:
    """``sections`` with what has an argument of its own: the model, and the share of the prompts that is held out."""
    out = dict(sections)
    if model is not None:
        out["model"] = {"path": model} if isinstance(model, str) else model
    if held_out is not None:
        out["prompts"] = {"held_out": held_out}
    return out


def _begun(what: What) -> dict[str, object]:
    if isinstance(what, Workflow):
        return {"workflow": what.use}
    if isinstance(what, Recipe):
        return dict(given_tree(what))
    if isinstance(what, Mapping):
        return dict(what)
    if what in WORKFLOWS:
        return {"algorithm": {"type": what}}
    if what in packaged():
        return dict(read_layers(packaged()[what], FOLDER).tree)
    if Path(what).suffix in SUFFIXES and not has_key(Path(what), "nodes"):
        if not Path(what).is_file():
            raise ConfigError(f"the file {what} does not exist (looked in {Path.cwd()}). Give a recipe's file.")
        return dict(read_layers(Path(what), FOLDER).tree)
    return {"workflow": what}


def _decays(backend: object) -> bool:
    return isinstance(backend, Mapping) and backend.get("lr_decay", "constant") != "constant"


def _hint(what: What) -> str:
    if isinstance(what, Workflow):
        return what.name
    if isinstance(what, str):
        return Path(what).stem.replace(":", "-")
    return "run"


def given_reward(reward: RewardLike | None) -> Reward | Mapping[str, Reward] | None:
    """The functions in what was given as reward: the one, or by part the several of a list or of ``parts``.

    In a section ``use`` may be the function itself, also within ``parts``.
    """
    if callable(reward):
        return reward
    if isinstance(reward, Mapping) and callable(use := reward.get("use")):
        return cast("Reward", use)
    parts = {name: part["use"] for name, part in _parts(reward).items() if callable(part.get("use"))}
    return cast("Mapping[str, Reward]", parts) or None


def _parts(reward: object) -> dict[str, Mapping[str, object]]:
    """The parts of a list of functions, by their names, or of a section that has ``parts``."""
    if isinstance(reward, Mapping):
        parts = reward.get("parts")
        found = cast("Mapping[str, object]", parts) if isinstance(parts, Mapping) else {}
        return {name: part for name, part in found.items() if isinstance(part, Mapping)}
    if isinstance(reward, str) or not isinstance(reward, Sequence):
        return {}
    named: dict[str, Mapping[str, object]] = {}
    for use in cast("Sequence[Reward | str]", reward):
        name = use if isinstance(use, str) else reward_name(use)
        if name in named:
            raise ConfigError(
                f"reward=[...] has two rewards called {name!r}, and each is recorded under its name. Give them names: "
                'reward={"parts": {"first": {"use": f}, "second": {"use": g}}}.'
            )
        named[name] = {"use": use}
    return named


def _reward_section(reward: RewardLike, before: object) -> Mapping[str, object]:
    """The section that names the reward; other keys of it stay, unless a section was given."""
    kept: dict[str, object] = dict(before) if isinstance(before, Mapping) and not isinstance(reward, Mapping) else {}
    for key in ("use", "with", "parts"):
        kept.pop(key, None)
    if isinstance(reward, str) or callable(reward):
        return {**kept, "use": _name_for(reward)}
    if isinstance(reward, Mapping):
        kept = {key: _name_for(value) if key == "use" else value for key, value in reward.items()}
    parts = {name: {**part, "use": _name_for(part.get("use"))} for name, part in _parts(reward).items()}
    if isinstance(reward, Mapping):
        return {**kept, "parts": {**cast("Mapping[str, object]", reward["parts"]), **parts}} if parts else kept
    return {**kept, "parts": parts}


def _name_for(use: object) -> object:
    return _named(use) if callable(use) else use


def _object_of(given: object) -> object:
    """What was given as a section with ``use``: the object itself, or the one in the section."""
    return given.get("use") if isinstance(given, Mapping) else given


def _section_of(given: object) -> object:
    """The section that names an environment or a filter, of which a call may give the object or only the name."""
    if isinstance(given, Mapping):
        use = given.get("use")
        return {**given, "use": _named(use)} if callable(use) else given
    if callable(given):
        return {"use": _named(given)}
    return {"use": given} if isinstance(given, str) else given


def _named(function: Callable[..., object]) -> str:
    """``module:name`` if that import gives this very object, else ``python:name``: only Python can resume it then."""
    if isinstance(function, partial):  # its settings have no name; what it is made of has
        return f"python:{reward_name(function)}"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is not None and module.__name__ != "__main__" and getattr(module, name, None) is function:
        return f"{module.__name__}:{name}"
    return f"python:{name}"
