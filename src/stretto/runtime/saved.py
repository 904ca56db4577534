"""Groups that another run recorded, in the place of rollout: what ``debug.rollouts_from`` names.

Owns what is read and whether it fits; ``saved_runner`` answers draws with it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import ConfigError
from stretto.graph import Graph, boundary_inputs
from stretto.store import GroupBody, RunView, find_run
from stretto.types import Group, Prompt

__all__ = ["SavedGroups", "check_prompt", "check_saved", "one_boundary", "read_saved"]

PromptOf = Callable[[int], Prompt]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedGroups:
    """What run ``run`` recorded of the draws of its main phase: groups, filtered ones too, and why a draw failed.

    ``node``: the per-group node whose groups they are.
    """

    run: str
    node: str
    groups: Mapping[int, Group]
    failed: Mapping[int, str]


def one_boundary(graph: Graph) -> str:
    """The per-group node whose groups a record holds. ConfigError if there are several: a record keeps one a draw."""
    nodes = boundary_inputs(graph)
    if len(nodes) != 1:
        raise ConfigError(
            f"workflow {graph.name!r} hands over the groups of {len(nodes)} nodes ({', '.join(nodes)}), and a record "
            "keeps one group a draw, so a step cannot be made from it. Use a workflow with one collect."
        )
    return nodes[0]


def read_saved(runs_dir: str, run: str, graph: Graph) -> SavedGroups:
    """The recorded groups of the main phase of ``run``. Raises ConfigError if there is no such run, or no group."""
    node = one_boundary(graph)
    view = RunView(find_run(Path(runs_dir), run))
    groups = {recorded.group.draw: recorded.group for recorded in view.groups(filtered=True)}
    if not groups:
        raise ConfigError(
            f"debug.rollouts_from={run}: that run has recorded no group of a main phase. Name another run."
        )
    failed = {
        e.body.draw: e.body.why
        for e in view.events
        if isinstance(e.body, GroupBody) and e.body.state == "dropped" and e.phase == "main"
    }
    return SavedGroups(run=view.name, node=node, groups=groups, failed=failed)


def check_saved(saved: SavedGroups, prompt_of: PromptOf | None, draws: int, groups_per_step: int) -> None:
    """Raises ConfigError unless the first ``draws`` draws are recorded, each of the prompt it has here (if known)."""
    for draw in range(draws):
        if draw not in saved.groups and draw not in saved.failed:
            raise ConfigError(
                f"debug.rollouts_from={saved.run} has no group of draw {draw}, and {draws} draws are asked for. "
                f"Set steps={max(1, draw // groups_per_step)} or fewer, or name a run that went on for longer."
            )
        if draw in saved.groups and prompt_of is not None:
            check_prompt(saved, draw, prompt_of(draw))


def check_prompt(saved: SavedGroups, draw: int, prompt: Prompt) -> None:
    """Raises ConfigError if the recorded group is of another prompt than this run draws."""
    known = saved.groups[draw].prompt
    if _identity(known) != _identity(prompt):
        raise ConfigError(
            f"debug.rollouts_from={saved.run}: its draw {draw} is of prompt {known.uid!r}, and here that draw takes "
            f"{prompt.uid!r} (or other tokens or data). Set prompts, order, seed and model.path as they were there."
        )


def _identity(prompt: Prompt) -> tuple[str, bytes, str]:
    data = json.dumps(dict(prompt.data), sort_keys=True, default=list)
    return prompt.uid, prompt.token_ids.tobytes(), data
