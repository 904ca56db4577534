"""The pages about what is built in: rewards, nodes and workflows, recipes, errors."""

import ast
import inspect
from typing import Any

from docstrings import cell, class_text, describe, find, inline, markdown, parse

from stretto import errors
from stretto.graph import Node, Workflow, draw_svg
from stretto.graph.annotations import type_name
from stretto.graph.settings import brief
from stretto.recipes import FOLDER, packaged
from stretto.workflows.builtin import WORKFLOWS
from stretto.workflows.nodes import NODES

STATUSES = """\
| status | |
|---|---|
| 0 | Done. |
| 2 | What was given cannot work; nothing was started or changed. |
| 3 | The run failed after it started; what was finished is saved. Also: a fault of Stretto's own. |
| 130 | Interrupted by Ctrl-C or a signal, with its state saved. |
"""

NODE_WORDS = {"input": "reads", "role": "asks for", "setting": "setting"}


def nodes_page() -> str:
    """Built-in workflows with their drawings, and built-in nodes."""
    text = (
        "# Nodes and workflows\n\nWhat is built in. [Your own](../your-own-workflow.md) are made from these and from "
        "any typed function.\n\n## Workflows\n\nA key of `algorithm` or `sampling` fills the parameter of "
        "the same name.\n\n"
    )
    for workflow, algorithms in _by_workflow().items():
        text += f"### {workflow.name}\n\n{markdown(inspect.getdoc(workflow.function) or '')}"
        text += f"Of algorithm.type={', '.join(algorithms)}.\n\n"
        text += f"![The graph of {algorithms[0]}](../pictures/graph-{algorithms[0]}.svg)\n\n"
        settings = inspect.signature(workflow.function).parameters.values()
        shown = [f"`{p.name}={_default(p.default)}`" for p in settings if p.kind is p.KEYWORD_ONLY]
        text += f"Parameters: {', '.join(shown)}.\n\n" if shown else ""
    text += "## Nodes\n\nFrom `stretto.workflows.nodes`, or by name in the written form (`use: rollout`).\n\n"
    for node in NODES.values():
        text += _node(node)
    return text.rstrip() + "\n"


def graph_pictures() -> dict[str, str]:
    """The drawing of every built-in workflow by the name of its file, which is that of its first algorithm."""
    return {f"graph-{algorithms[0]}.svg": draw_svg(workflow.graph()) for workflow, algorithms in _by_workflow().items()}


def _by_workflow() -> dict[Workflow, list[str]]:
    """Every built-in workflow, with the algorithms that imply it."""
    found: dict[Workflow, list[str]] = {}
    for name, workflow in WORKFLOWS.items():
        found.setdefault(workflow, []).append(name)
    return found


def _default(value: object) -> str:
    """A default as drawings show it; a section that says nothing is all at its own defaults."""
    return "null" if value is None else brief(value) or "()"


def _node(node: Node[Any]) -> str:
    text = f"### {node.name}\n\n{markdown(inspect.getdoc(node.function) or '')}"
    rows = []
    for param in node.params.values():
        kind = NODE_WORDS[param.kind]
        default = "" if param.required or param.variadic or param.kind == "role" else f"`{_default(param.default)}`"
        star = "*" if param.variadic else ""
        rows.append(f"| `{star}{param.name}` | {kind} | {cell(type_name(param.type))} | {default} |")
    gives = type_name(node.output)
    table = "\n".join(["| parameter | | type | default |", "|---|---|---|---|", *rows])
    on = f" Its Model is `{node.model}` unless `on=` names another." if node.has_model else ""
    return f"{text}{table}\n\nGives {gives}.{on}\n\n"


def rewards_page() -> str:
    """Built-in rewards with their settings, and the forms of one's own."""
    from stretto.environments.rewards.builtin import BUILTIN

    text = (
        "# Rewards\n\nWhat is built in, by the name that `reward.use` and `reward.parts.NAME.use` take; settings go "
        "under `with`. [How to write one of your own](../your-own-reward.md).\n\n```yaml\n"
        "reward: {use: number, with: {inside: answer}}\n```\n\n"
    )
    for name, made in BUILTIN.items():
        found = find(made.__module__, made.__name__)
        assert isinstance(found, ast.ClassDef)
        text += f"## {name}\n\n{class_text(found, name, members=False)}"
    forms = ast.get_docstring(parse("stretto.environments.rewards.forms")) or ""
    text += f"## Forms of your own\n\n{markdown(forms)}"
    text += "### Context\n\n" + describe("stretto.environments.rewards.context", "Context").split("\n\n", 1)[1]
    return text.rstrip() + "\n"


def recipes_page() -> str:
    """Every packaged recipe, whole."""
    text = (
        "# Packaged recipes\n\nEach name can be trained as it is (`stretto train quickstart`), changed by `key=value`, "
        "or extended by a recipe of your own (`extends: [quickstart]`).\n\n"
    )
    for name in packaged():
        text += f"## {name}\n\n```yaml\n{(FOLDER / f'{name}.yaml').read_text(encoding='utf-8').rstrip()}\n```\n\n"
    return text.rstrip() + "\n"


def errors_page() -> str:
    """The tree of errors and the exit statuses."""
    text = "# Errors and exit statuses\n\n" + markdown(ast.get_docstring(parse("stretto.errors")) or "")
    text += f"## Exit statuses\n\n{STATUSES}\n"
    text += (
        "A traceback is shown with `--debug` only. The `error` and `end` events of "
        "[the record](../events.md) hold the same message, with the node or part it came from.\n\n## Errors\n\n"
        "Catch them from `stretto.errors`; `stretto.StrettoError` catches all.\n\n| error | status | |\n|---|---|---|\n"
    )
    for name in errors.__all__:
        found = getattr(errors, name)
        if inspect.isclass(found):
            text += f"| `{name}` | {found.exit_status} | {cell(inline(inspect.getdoc(found) or ''))} |\n"
    return text.rstrip() + "\n"
