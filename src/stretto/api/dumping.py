"""What the edges of a step carried, as files that other tools read: tensors as safetensors, the rest as JSON.

    index.json          the run, the step, and of every node: type, files, tensors with shapes
    NODE.safetensors    the tensors of what the node gave, by name
    NODE.jsonl          its groups, a line each (as in rollouts/), or its numbers and texts in one line
    rows.jsonl          the rows of a batch in order: what entry b of a per-trajectory tensor, and the tokens from
                        offsets[b] to offsets[b + 1] of a per-token one, belong to

Nothing is pickled. The folder is whole or not there.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from safetensors.numpy import save_file

from stretto.api.exporting import write_folder
from stretto.graph import Graph
from stretto.runtime.edges import Leaf, leaves_of
from stretto.store import encode_group
from stretto.types import Array, Batch, Group

__all__ = ["dump_edges"]


def dump_edges(to: Path, edges: Mapping[str, object], graph: Graph, *, run: str, phase: str, step: int) -> None:
    """Write what each node gave into the new folder ``to``. Raises ConfigError if it is taken."""

    def write(folder: Path) -> None:
        written = {id: _write_edge(folder, id, value) for id, value in edges.items()}
        rows = _rows(edges)
        if rows is not None:
            _write_rows(folder, rows)
        nodes = {
            id: {"reads": dict(graph.by_id[id].inputs), **entry} for id, entry in written.items() if id in graph.by_id
        }
        index = {"run": run, "phase": phase, "step": step, "nodes": nodes}
        (folder / "index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    write_folder(to, write)


def _write_edge(folder: Path, id: str, value: object) -> dict[str, object]:
    """The files of one node's value, and their entry in the index."""
    entry: dict[str, object] = {"type": type(value).__name__, "files": []}
    files = cast("list[str]", entry["files"])
    groups = _groups_of(value)
    if groups is not None:
        lines = "".join(encode_group(group) + "\n" for group in groups)
        (folder / f"{id}.jsonl").write_text(lines, encoding="ascii")
        files.append(f"{id}.jsonl")
        return entry
    tensors: dict[str, Array] = {}
    texts: dict[str, Leaf] = {}
    for name, leaf in leaves_of(value):
        if isinstance(leaf, str) or leaf.dtype.kind not in "biuf":
            texts[name or "value"] = leaf if isinstance(leaf, str) else str(leaf.tolist())
        else:
            tensors[name or "value"] = np.ascontiguousarray(leaf)
    if tensors:
        save_file(dict(tensors), folder / f"{id}.safetensors")
        files.append(f"{id}.safetensors")
        entry["tensors"] = {name: {"dtype": t.dtype.name, "shape": list(t.shape)} for name, t in tensors.items()}
    if texts:
        line = json.dumps({name: _plain(str(text)) for name, text in texts.items()}, ensure_ascii=False)
        (folder / f"{id}.jsonl").write_text(line + "\n", encoding="utf-8")
        files.append(f"{id}.jsonl")
    return entry


def _plain(text: str) -> object:
    """A number, a truth, a text or nothing, of how it is written; what is not finite stays text."""
    try:
        return json.loads(text) if text not in ("nan", "inf", "-inf") else text
    except ValueError:
        known = {"True": True, "False": False, "None": None}
        return known[text] if text in known else text.removeprefix("'").removesuffix("'")


def _groups_of(value: object) -> Sequence[Group] | None:
    """The groups that a value is made of, if it is nothing but groups."""
    match value:
        case Batch():
            return value.groups
        case Group():
            return (value,)
        case tuple() if value and all(isinstance(item, Group) for item in value):
            return cast("tuple[Group, ...]", value)
    return None


def _rows(edges: Mapping[str, object]) -> Batch | None:
    return next((value for value in edges.values() if isinstance(value, Batch)), None)


def _write_rows(folder: Path, batch: Batch) -> None:
    """The rows of the step's batch."""
    with open(folder / "rows.jsonl", "w", encoding="ascii") as file:
        for row, key in enumerate(batch.keys):
            begin, end = int(batch.offsets[row]), int(batch.offsets[row + 1])
            line = {"draw": key.draw, "sample": key.sample, "part": key.part, "model": key.model}
            file.write(json.dumps({**line, "tokens": [begin, end]}) + "\n")
