"""The pages about Python: every public name with its signature and docstring."""

import ast

from docstrings import describe, first_sentence, parse

import stretto

HOMES: dict[str, str] = stretto._HOMES
"""The one list of public names and their modules."""

PARTS = {
    "Runs": ["train", "resume", "Run", "debug"],
    "Loops of one's own": ["session", "Session"],
    "Nodes and workflows": ["node", "workflow"],
    "Roles": ["Generate", "Judge", "Tokenize", "Score", "Train"],
    "Nouns": ["Prompt", "Message", "Trajectory", "Group", "Key", "Batch", "Column", "Credit", "LossRef"],
    "Reports": ["UpdateReport", "StepReport", "Metric"],
}
"""The names of ``stretto`` in the order of the page; a name that is not here comes at the end."""

ROLES = """\
A node asks for a role by the annotation of a parameter; the run binds it to a Model or a service.
"""

NOUNS = """\
All are immutable: `dataclasses.replace` makes a changed copy. Letters at the end of names are shapes: B trajectories, G
siblings of a group, T tokens, N written tokens, P prompts. Entry `t` of a per-token array speaks of writing token
`t`.
"""


def python_page() -> str:
    """Every name of ``stretto.__all__``."""
    known = [name for names in PARTS.values() for name in names]
    others = [n for n in stretto.__all__ if n not in known and n in HOMES and not n.endswith("Error")]
    text = "# Python\n\nEverything here is imported from `stretto`: `from stretto import node, workflow`.\n\n"
    for title, names in {**PARTS, "More": others}.items():
        if names:
            text += f"## {title}\n\n" + {"Roles": ROLES + "\n", "Nouns": NOUNS + "\n"}.get(title, "")
            text += "".join(describe(HOMES[name], name) for name in names)
    text += "## Errors\n\n`stretto.StrettoError` is the base of [all errors](errors.md).\n\n"
    text += "## Reading runs\n\nFrom `stretto.store`: what [the record of a run](../events.md) holds.\n\n"
    text += describe("stretto.store.reader", "RunView") + describe("stretto.store.reader", "find_run")
    text += "## Steps made again\n\nWhat `debug` gives; see [debugging a run](../debugging.md).\n\n"
    text += describe("stretto.api.replaying", "Debugged") + describe("stretto.api.replaying", "NodeRow")
    return text.rstrip() + "\n"


def algorithms_page() -> str:
    """Losses, advantages, aggregation and off-policy correction."""
    text = "# Algorithms in Python\n\nWhat an [algorithm of one's own](../your-own-workflow.md) is made from.\n\n"
    losses, advantages = "stretto.algorithms.losses", "stretto.algorithms.advantages"
    parts = {
        "Losses": (losses, ["Tokens", "LossOutput", "TokenLosses", "policy_loss", *_losses()]),
        "Advantages": (advantages, _public(advantages)),
        "Aggregation": ("stretto.algorithms.aggregation", _public("stretto.algorithms.aggregation")),
        **{title: (module, _public(module)) for title, module in _off_policy().items()},
    }
    for title, (module, names) in parts.items():
        text += f"## {title}\n\nFrom `{module}`. {_about(module)}\n\n"
        text += "".join(describe(module, name) for name in names)
    return text.rstrip() + "\n"


def _losses() -> list[str]:
    from stretto.algorithms.losses import LOSSES  # torch, which the other pages do without

    return [*(loss.__name__ for loss in LOSSES.values()), "kl_in_loss"]


def _off_policy() -> dict[str, str]:
    parts = {
        "Off-policy correction": "correction",
        "Log-ratios": "ratios",
        "Importance weights": "weights",
        "Rejection": "rejection",
        "Off-policy metrics": "metrics",
        "Proximal log-probs": "proximal",
    }
    return {title: f"stretto.algorithms.off_policy.{name}" for title, name in parts.items()}


def _about(module: str) -> str:
    return first_sentence(ast.get_docstring(parse(module)) or "")


def _public(module: str) -> list[str]:
    """``__all__`` of a module or of a package that imports it, in the order of its source."""
    tree = parse(module)
    (names,) = [s.value for s in tree.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "__all__"]
    listed = set(ast.literal_eval(names))
    found: list[str] = []
    for s in tree.body:
        if isinstance(s, ast.ImportFrom):
            found += [alias.name for alias in s.names]
        elif isinstance(s, ast.FunctionDef | ast.ClassDef):
            found.append(s.name)
    return [name for name in found if name in listed]
