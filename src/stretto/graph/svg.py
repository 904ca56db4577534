"""Draws a graph as SVG: boxes in layers with the Model on each, every edge as a curve, a line between the two worlds.

Edges that a longer way implies are drawn too, in a lighter tone, and pass around the boxes between.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from stretto.graph.layout import Item, Layout, lay_out, needed_edges
from stretto.graph.settings import brief
from stretto.graph.specs import PROMPT, Graph, NodeSpec, parents

__all__ = ["draw_svg"]

_LETTER, _SMALL = 9.0, 7.2
_BOX, _LAYER, _GAP, _MARGIN = 50, 104, 28, 36
_STYLE = """
  text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
  .name { font-size: 14px; font-weight: 600; } .calls { font-size: 12px; fill: #52606d; }
  .model { font-size: 11px; font-weight: 600; } .title { font-size: 17px; font-weight: 700; }
  .world { font-size: 12px; font-style: italic; fill: #7b8794; }
  .box { fill: #ffffff; stroke: #9aa5b1; stroke-width: 1.2; } .start { fill: #f0f4f8; stroke: #9aa5b1; }
  .edge { fill: none; stroke: #52606d; stroke-width: 1.5; } .far { stroke: #bcc5cf; stroke-width: 1.2; }
  .boundary { stroke: #d64545; stroke-width: 1.4; stroke-dasharray: 7 5; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    name: str
    calls: str
    model: str | None
    reads: str

    @property
    def width(self) -> float:
        pill = _SMALL * len(self.model) + 26 if self.model else 0.0
        return max(_LETTER * len(self.name) + pill, _SMALL * len(self.calls)) + 28


def draw_svg(graph: Graph) -> str:
    """The drawing as one SVG document."""
    boxes = {PROMPT: _Box(name=PROMPT, calls="Prompt", model=None, reads="")}
    boxes |= {spec.id: _box(spec) for spec in graph.nodes}

    def width(item: Item) -> float:
        return 6.0 if item.bend else boxes[item.id].width

    def distance(left: Item, right: Item) -> float:
        return (width(left) + width(right)) / 2 + _GAP

    edges = [(id, spec.id) for spec in graph.nodes for id in parents(spec)]
    layout = lay_out(graph, edges, distance)
    left = min(layout.x[item] - width(item) / 2 for item in layout.x) - _MARGIN
    right = max(layout.x[item] + width(item) / 2 for item in layout.x) + _MARGIN
    total, height = max(right - left, 420.0), _MARGIN + 34 + _LAYER * len(layout.layers) - (_LAYER - _BOX) + _MARGIN
    shift = (total - (right - left)) / 2 - left
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" height="{height}" '
        f'viewBox="0 0 {total:.0f} {height}" role="img" aria-label="workflow {_safe(graph.name)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0.8 L7.5 4 L0 7.2 z" fill="#52606d"/></marker></defs>',
        f'<rect width="{total:.0f}" height="{height}" fill="#fbfcfd"/>',
        f'<text class="title" x="{_MARGIN}" y="{_MARGIN}">{_safe(graph.name)}</text>',
        *_boundary(layout, total),
        *_edges(graph, layout, shift),
        *(
            _drawn(boxes[item.id], layout.x[item] + shift, item)
            for row in layout.layers
            for item in row
            if not item.bend
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _safe(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def _box(spec: NodeSpec) -> _Box:
    name = spec.use.rpartition(":")[2].rpartition(".")[2]
    shown = [f"{key}={text}" for key, value in spec.settings.items() if (text := brief(value))]
    reads = ", ".join(f"{key}={id if isinstance(id, str) else ', '.join(id)}" for key, id in spec.inputs.items())
    calls = " · ".join((name, *shown))
    return _Box(
        name=spec.id,
        calls=calls if len(calls) <= 44 else calls[:43] + "…",
        model=spec.model,
        reads=f"{spec.use}({reads}) gives {spec.output}" + "".join(f"\n{setting}" for setting in shown),
    )


def _top(layer: int) -> float:
    return _MARGIN + 34 + layer * _LAYER


def _boundary(layout: Layout, total: float) -> list[str]:
    y = _top(layout.boundary) - (_LAYER - _BOX) / 2
    return [
        f'<line class="boundary" x1="{_MARGIN / 2}" y1="{y}" x2="{total - _MARGIN / 2:.1f}" y2="{y}"/>',
        f'<text class="world" x="{_MARGIN / 2}" y="{y - 7}">per group, as they come</text>',
        f'<text class="world" x="{_MARGIN / 2}" y="{y + 17}">per step, as a batch</text>',
    ]


def _edges(graph: Graph, layout: Layout, shift: float) -> list[str]:
    needed = set(needed_edges(graph))
    entering: dict[str, list[tuple[str, str]]] = {}
    for edge, way in sorted(layout.edges.items(), key=lambda item: layout.x[item[1][-2]]):
        entering.setdefault(way[-1].id, []).append(edge)
    paths: list[tuple[bool, str]] = []
    for edge, way in layout.edges.items():
        ways_in = entering[way[-1].id]
        port = (ways_in.index(edge) - (len(ways_in) - 1) / 2) * min(14.0, 60 / len(ways_in))
        kind = "edge" if edge in needed else "edge far"
        path = _path([layout.x[item] + shift for item in way], way, port)
        paths.append((edge in needed, f'<path class="{kind}" marker-end="url(#arrow)" d="{path}"/>'))
    return [path for _, path in sorted(paths, key=lambda drawn: drawn[0])]


def _path(xs: Sequence[float], way: Sequence[Item], port: float) -> str:
    xs = [*xs[:-1], xs[-1] + port]
    steps = [f"M{xs[0]:.1f} {_top(way[0].layer) + _BOX:.1f}"]
    for (x1, above), (x2, below) in pairwise(zip(xs, way, strict=True)):
        y1, y2 = _top(above.layer) + _BOX, _top(below.layer)
        bow = (y2 - y1) * 0.55
        steps.append(f"C{x1:.1f} {y1 + bow:.1f} {x2:.1f} {y2 - bow:.1f} {x2:.1f} {y2:.1f}")
        if below.bend:
            steps.append(f"V{y2 + _BOX:.1f}")
    return " ".join(steps)


def _drawn(box: _Box, x: float, item: Item) -> str:
    left, top = x - box.width / 2, _top(item.layer)
    kind = "start" if item.id == PROMPT else "box"
    drawn = [
        f"<g><title>{_safe(box.reads or 'where the graph starts')}</title>",
        f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{box.width:.1f}" height="{_BOX}" rx="9"/>',
        f'<text class="name" x="{left + 14:.1f}" y="{top + 21}">{_safe(box.name)}</text>',
        f'<text class="calls" x="{left + 14:.1f}" y="{top + 39}">{_safe(box.calls)}</text>',
    ]
    if box.model:
        pill, hue = _SMALL * len(box.model) + 16, _hue(box.model)
        start = left + box.width - pill - 9
        drawn += [
            f'<rect x="{start:.1f}" y="{top + 8}" width="{pill:.1f}" height="18" rx="9" fill="hsl({hue}, 65%, 90%)"/>',
            f'<text class="model" text-anchor="middle" x="{start + pill / 2:.1f}" y="{top + 21}" '
            f'style="fill: hsl({hue}, 60%, 30%)">{_safe(box.model)}</text>',
        ]
    return "".join([*drawn, "</g>"])


def _hue(model: str) -> int:
    """A colour for a Model: the usual ones far apart, any other by its name."""
    usual = {"policy": 212, "critic": 28, "reference": 150, "reward": 330, "teacher": 270}
    return usual.get(model, int(hashlib.sha256(model.encode()).hexdigest(), 16) % 360)
