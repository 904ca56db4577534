"""Where the nodes of a drawing go: layers from top to bottom, places from left to right. Knows no picture format.

Layered drawing after Sugiyama: a node's layer is the longest way to it, per-step nodes lie below every per-group one;
an edge over several layers passes through a bend in each; order in a layer by barycentres; places by least squares
under the given distances (isotonic regression).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stretto.graph.forms import dump_graph
from stretto.graph.specs import PROMPT, Graph, boundary_inputs, parents

__all__ = ["Item", "Layout", "draw_json", "lay_out", "layers_of", "needed_edges"]


@dataclass(frozen=True, slots=True)
class Item:
    """A node (``bend`` False), or the place where edges from node ``id`` pass through a layer they do not end in."""

    id: str
    layer: int
    bend: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``layers`` from top to bottom, each from left to right; ``x`` is the middle of an item.

    ``links`` join items of adjacent layers; ``edges`` are the whole ways from node to node. ``boundary`` is the first
    layer of per-step nodes.
    """

    layers: tuple[tuple[Item, ...], ...]
    links: tuple[tuple[Item, Item], ...]
    edges: Mapping[tuple[str, str], tuple[Item, ...]]
    x: Mapping[Item, float]
    boundary: int


def draw_json(graph: Graph) -> str:
    """The graph for other programs: its written form, with worlds, layers, Models, types and edges."""
    layers = layers_of(graph)
    nodes = [
        {
            **written,
            "world": spec.world,
            "layer": layers[spec.id],
            "roles": {name: {"kind": role.kind, "model": role.model} for name, role in spec.roles.items()},
            "output": spec.output,
        }
        for written, spec in zip(_written_nodes(graph), graph.nodes, strict=True)
    ]
    edges = [{"from": id, "to": spec.id} for spec in graph.nodes for id in parents(spec)]
    drawn = {
        "workflow": graph.name,
        "nodes": nodes,
        "edges": edges,
        "boundary": list(boundary_inputs(graph)),
        "order": [spec.id for spec in graph.order],
        "output": graph.output,
    }
    return json.dumps(drawn, indent=2)


def _written_nodes(graph: Graph) -> list[dict[str, object]]:
    written = dump_graph(graph)["nodes"]
    assert isinstance(written, list)
    return written  # pyright: ignore[reportUnknownVariableType]


def layers_of(graph: Graph) -> dict[str, int]:
    """The layer of every node; the prompt's is 0."""
    layers = {PROMPT: 0}
    for spec in graph.group_nodes:
        layers[spec.id] = 1 + max((layers[id] for id in parents(spec)), default=0)
    first = 1 + max(layers.values())
    for spec in graph.step_nodes:
        layers[spec.id] = max((first, *(1 + layers[id] for id in parents(spec))))
    for spec in reversed(graph.order):
        # What waits for nothing stands right above its first reader.
        if not parents(spec):
            above = min(layers[id] for id in graph.readers[spec.id]) - 1
            layers[spec.id] = max(layers[spec.id], above if spec.world == "step" else min(above, first - 1))
    return layers


def needed_edges(graph: Graph) -> list[tuple[str, str]]:
    """The edges that no longer way implies (the transitive reduction): what each node really waits for."""
    below: dict[str, set[str]] = {PROMPT: set()}
    for spec in graph.order:
        below[spec.id] = {a for id in parents(spec) for a in (id, *below[id])}
    kept: list[tuple[str, str]] = []
    for spec in graph.nodes:
        ids = parents(spec)
        implied = {a for id in ids for a in below[id]}
        kept.extend((id, spec.id) for id in ids if id not in implied)
    return kept


def lay_out(graph: Graph, edges: Sequence[tuple[str, str]], distance: Callable[[Item, Item], float]) -> Layout:
    """Place everything; ``distance`` is how far the middles of two neighbours must at least be apart."""
    layer = layers_of(graph)
    ways = {edge: _way(edge, layer) for edge in edges}
    order = {id: place for place, id in enumerate((PROMPT, *(spec.id for spec in graph.nodes)))}
    items = {Item(id, layer[id]) for id in order} | {item for way in ways.values() for item in way}
    links = sorted({link for way in ways.values() for link in pairwise(way)}, key=lambda link: _key(link, order))
    rows: list[list[Item]] = [[] for _ in range(1 + max(layer.values()))]
    for item in sorted(items, key=lambda item: (order[item.id], item.bend)):
        rows[item.layer].append(item)
    up, down = _neighbours(items, links)
    _sort_rows(rows, up, down)
    return Layout(
        layers=tuple(tuple(row) for row in rows),
        links=tuple(links),
        edges=ways,
        x=_places(rows, up, down, distance),
        boundary=min(layer[spec.id] for spec in graph.step_nodes),
    )


def _way(edge: tuple[str, str], layer: Mapping[str, int]) -> tuple[Item, ...]:
    source, target = edge
    bends = (Item(source, row, bend=True) for row in range(layer[source] + 1, layer[target]))
    return (Item(source, layer[source]), *bends, Item(target, layer[target]))


def _key(link: tuple[Item, Item], order: Mapping[str, int]) -> tuple[int, int, int, bool]:
    return (link[0].layer, order[link[0].id], order[link[1].id], link[1].bend)


def _neighbours(
    items: set[Item], links: Sequence[tuple[Item, Item]]
) -> tuple[dict[Item, list[Item]], dict[Item, list[Item]]]:
    up: dict[Item, list[Item]] = {item: [] for item in items}
    down: dict[Item, list[Item]] = {item: [] for item in items}
    for above, below in links:
        up[below].append(above)
        down[above].append(below)
    return up, down


def _sort_rows(rows: list[list[Item]], up: Mapping[Item, Sequence[Item]], down: Mapping[Item, Sequence[Item]]) -> None:
    for sweep in range(8):
        neighbours, walk = (up, rows) if sweep % 2 == 0 else (down, rows[::-1])
        for row in walk:
            place = {item: index for other in rows for index, item in enumerate(other)}
            wanted = {item: _mean([place[n] for n in neighbours[item]], place[item]) for item in row}
            row.sort(key=lambda item: wanted[item])


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _places(
    rows: Sequence[Sequence[Item]],
    up: Mapping[Item, Sequence[Item]],
    down: Mapping[Item, Sequence[Item]],
    distance: Callable[[Item, Item], float],
) -> dict[Item, float]:
    x: dict[Item, float] = {}
    for row in rows:
        x.update(_apart(row, dict.fromkeys(row, 0.0), distance))
    for sweep in range(12):
        for row in rows if sweep % 2 else reversed(rows):
            sides = (up, down) if 4 <= sweep < 10 else (up,) if sweep % 2 else (down,)
            wanted = {item: _mean([x[n] for side in sides for n in side[item]], x[item]) for item in row}
            x.update(_apart(row, wanted, distance))
    return x


def _apart(
    row: Sequence[Item], wanted: Mapping[Item, float], distance: Callable[[Item, Item], float]
) -> dict[Item, float]:
    """The places nearest to those wanted (least squares) that keep order and distances: pool adjacent violators."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + distance(left, right))
    pools: list[tuple[float, int]] = []
    for item, offset in zip(row, offsets, strict=False):
        mean, count = wanted[item] - offset, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return {item: mean + offset for item, mean, offset in zip(row, flat, offsets, strict=False)}
