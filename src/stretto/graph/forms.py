"""The written form of a graph: plain mappings for YAML and JSON, and back.

    workflow: ppo
    nodes:
    - id: ref
      use: logprobs              # a built-in name, or module:function
      on: reference              # only where it is not the node's own Model
      inputs: {batch: batch}     # parameter: id, or a list of ids for *parameter; `prompt` is where it starts
      with: {}                   # settings
    output: report

Python -> YAML -> Python is the identity. Checks of the graph itself are ``building``'s; here are those of the writing.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from stretto.config.reading import parse_value
from stretto.errors import ConfigError, GraphError, nearest
from stretto.graph.building import Draft, Drafted, build_graph
from stretto.graph.nodes import Node, find_object
from stretto.graph.settings import from_json, to_json
from stretto.graph.specs import Graph, NodeSpec

__all__ = ["dump_graph", "dump_yaml", "load_graph"]

_GRAPH_KEYS = ("workflow", "nodes", "output")
_NODE_KEYS = ("id", "use", "on", "inputs", "with")


def dump_graph(graph: Graph) -> dict[str, object]:
    """The graph as JSON values. Settings are complete, so that a later default changes nothing."""
    return {
        "workflow": graph.name,
        "nodes": [_dump_node(spec, graph.functions[spec.id]) for spec in graph.nodes],
        "output": graph.output,
    }


def _dump_node(spec: NodeSpec, node: Node[Any]) -> dict[str, object]:
    written: dict[str, object] = {"id": spec.id, "use": spec.use}
    if spec.model is not None and spec.model != node.model:
        written["on"] = spec.model
    if spec.inputs:
        written["inputs"] = {name: id if isinstance(id, str) else list(id) for name, id in spec.inputs.items()}
    if spec.settings:
        written["with"] = {name: to_json(value, node.params[name].type) for name, value in spec.settings.items()}
    return written


class _Dumper(yaml.SafeDumper):
    """Writes ``on`` without quotes, as the loader reads it: here it is text (YAML 1.2)."""

    yaml_implicit_resolvers = {  # noqa: RUF012 PyYAML's own shape
        first: rules for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items() if first not in ("o", "O")
    }

    def ignore_aliases(self, data: object) -> bool:
        """Write equal values twice, not as an anchor."""
        return True


def _text_node(dumper: _Dumper, text: str) -> yaml.Node:
    # Line breaks of all kinds and control characters survive only between double quotes.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _text_node)
# Text that the loader would take for a number, and that PyYAML alone would not, is quoted.
_Dumper.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def dump_yaml(graph: Graph) -> str:
    """The graph as YAML text, which ``load_graph`` reads from a file."""
    return yaml.dump(  # pyright: ignore[reportUnknownMemberType]
        dump_graph(graph), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )


def load_graph(source: Mapping[str, object] | str | Path, builtins: Mapping[str, Node[Any]]) -> Graph:
    """The checked graph of a mapping, or of a YAML or JSON file. ``builtins`` are the nodes with a bare name."""
    if isinstance(source, Mapping):
        return build_graph(_read(source, builtins, "the workflow"))
    path = Path(source)
    written = _parse(path)
    if not isinstance(written, Mapping):
        raise GraphError(f"{path} holds no workflow but {type(written).__name__}. Write workflow:, nodes: and output:.")
    try:
        return build_graph(_read(cast(Mapping[str, object], written), builtins, "the workflow"))
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def _parse(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GraphError(f"the workflow file {path} cannot be read: {error}. Name a YAML file.") from None
    if path.suffix == ".json":
        return _parse_json(text, path)
    try:
        written = parse_value(text, str(path))
        _check_doubled(yaml.compose(text, yaml.SafeLoader), path)
    except ConfigError as error:
        raise GraphError(str(error)) from None
    return written


def _parse_json(text: str, path: Path) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise GraphError(f"{path}: the key {key!r} is written twice in one object. Leave one out.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise GraphError(f"{path}:{error.lineno}: not valid JSON: {error.msg}. Mend the line.") from None


def _check_doubled(part: yaml.Node | None, path: Path) -> None:
    """Refuse a key that is written twice in a mapping; YAML would keep the last one."""
    if isinstance(part, yaml.MappingNode):
        seen: set[object] = set()
        for key, value in part.value:
            if key.value in seen:
                raise GraphError(
                    f"{path}:{key.start_mark.line + 1}: the key {key.value!r} is written twice. Leave one out."
                )
            seen.add(key.value)
            _check_doubled(value, path)
    elif isinstance(part, yaml.SequenceNode):
        for item in part.value:
            _check_doubled(item, path)


def _read(written: Mapping[str, object], builtins: Mapping[str, Node[Any]], what: str) -> Drafted:
    _check_keys(written, _GRAPH_KEYS, what)
    nodes = written.get("nodes")
    if not isinstance(nodes, list | tuple):
        raise GraphError(f"{what} has no list of nodes. Write nodes: [{{id: group, use: rollout, ...}}, ...].")
    return Drafted(
        name=_text(written, "workflow", what),
        nodes=tuple(_read_node(item, builtins, place) for place, item in enumerate(cast(list[object], nodes), 1)),
        output=_text(written, "output", what),
    )


def _read_node(written: object, builtins: Mapping[str, Node[Any]], place: int) -> Draft:
    if not isinstance(written, Mapping):
        raise GraphError(f"node number {place} is {written!r}. Write it as {{id: group, use: rollout, ...}}.")
    node = cast(Mapping[str, object], written)
    id = _text(node, "id", f"node number {place}")
    what = f"node {id!r}"
    _check_keys(node, _NODE_KEYS, what)
    function = _find(_text(node, "use", what), builtins, what)
    return Draft(
        id=id,
        node=function,
        inputs={name: _ids(value, f"{what}: input {name!r}") for name, value in _part(node, "inputs", what).items()},
        settings={
            name: from_json(value, function.params[name].type, f"{what} ({function.name}): setting {name!r}")
            if name in function.params and function.params[name].kind == "setting"
            else _no_setting(name, function, what)
            for name, value in _part(node, "with", what).items()
        },
        on=_text(node, "on", what) if "on" in node else None,
    )


def _no_setting(name: str, function: Node[Any], what: str) -> object:
    param = function.params.get(name)
    why = nearest(name, function.of_kind("setting"))
    if param is not None:
        why = " It is an input: write it under inputs." if param.kind == "input" else " The runtime binds its roles."
    raise GraphError(f"{what} ({function.name}) has no setting {name!r}.{why}")


def _find(use: str, builtins: Mapping[str, Node[Any]], what: str) -> Node[Any]:
    if use in builtins:
        return builtins[use]
    if ":" not in use:
        raise GraphError(
            f"{what} uses {use!r}, and no built-in node is called that.{nearest(use, builtins)} "
            "Your own is written module:function."
        )
    found = find_object(use, f"the function of {what}")
    if not isinstance(found, Node):
        raise GraphError(f"{what} uses {use!r}, which is {found!r}. Put @node on the function.")
    return cast(Node[Any], found)


def _ids(value: object, what: str) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    ids = cast(list[object], value)
    if not isinstance(value, list | tuple) or not all(isinstance(id, str) for id in ids):
        raise GraphError(f"{what} is {value!r}. Write the id of a node, or a list of ids.")
    return tuple(str(id) for id in ids)


def _part(node: Mapping[str, object], key: str, what: str) -> Mapping[str, object]:
    value = node.get(key, {})
    if not isinstance(value, Mapping):
        raise GraphError(f"{what}: {key} is {value!r}. Write {key}: {{parameter: value}}.")
    return cast(Mapping[str, object], value)


def _text(written: Mapping[str, object], key: str, what: str) -> str:
    value = written.get(key)
    if not isinstance(value, str):
        came = f"is {value!r}" if key in written else "is missing"
        raise GraphError(f"{what}: {key} {came}. Write {key}: and a name.")
    return value


def _check_keys(written: Mapping[str, object], known: Collection[str], what: str) -> None:
    for key in written:
        if key not in known:
            raise GraphError(f"{what} has an unknown key {key!r}.{nearest(str(key), known)}")
