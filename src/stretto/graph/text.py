"""Draws a graph as text: boxes of names in layers, lines between them, and a table of what each node reads.

Lines show what waits for what; an edge that a longer way implies is left to the table. Crossing lines do not join
unless they meet in a corner.
"""

from collections.abc import Callable, Mapping, Sequence

from stretto.graph.layout import Item, Layout, lay_out, needed_edges
from stretto.graph.settings import brief
from stretto.graph.specs import PROMPT, Graph, NodeSpec

__all__ = ["draw_text"]

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"
_GAP = 4
_LONGEST = 60
"""Letters of a setting in the table; its end is cut off."""


def draw_text(graph: Graph) -> str:
    """The drawing and the table, as lines of text."""
    labels = {PROMPT: PROMPT, **{spec.id: _label(spec) for spec in graph.nodes}}

    def width(item: Item) -> int:
        return 1 if item.bend else len(labels[item.id])

    def distance(left: Item, right: Item) -> int:
        return (width(left) + 1) // 2 + width(right) // 2 + _GAP

    layout = lay_out(graph, needed_edges(graph), distance)
    middles = _columns(layout, width)
    right = max(middles[item] + width(item) // 2 + 1 for row in layout.layers for item in row)
    lines: list[str] = []
    for number, row in enumerate(layout.layers):
        if number:
            links = [(middles[a], middles[b]) for a, b in layout.links if b.layer == number]
            band = _band(links, frozenset(middles[item] for item in row if item.bend))
            lines.extend(_with_boundary(band, middles, layout, right) if number == layout.boundary else band)
        text = [" "] * (right + 1)
        for item in row:
            label = "│" if item.bend else labels[item.id]
            start = middles[item] - len(label) // 2
            text[start : start + len(label)] = label
        lines.append("".join(text).rstrip())
    drawing = "\n".join(f"  {line}".rstrip() for line in lines)
    return f"workflow {graph.name}\n\n{drawing}\n\n{_table(graph)}\n"


def _label(spec: NodeSpec) -> str:
    name = spec.use.rpartition(":")[2].rpartition(".")[2]
    text = f"[{spec.id}]" if name == spec.id else f"[{spec.id}: {name}]"
    return f"{text[:-1]} ({spec.model})]" if spec.model else text


def _columns(layout: Layout, width: Callable[[Item], int]) -> dict[Item, int]:
    """Whole columns from 0 on. Rounding a place before its row's offset keeps every distance."""
    columns: dict[Item, int] = {}
    for row in layout.layers:
        previous: Item | None = None
        for item in row:
            column = round(layout.x[item])
            if previous is not None:
                column = max(column, columns[previous] + (width(previous) + 1) // 2 + width(item) // 2 + 1)
            columns[item], previous = column, item
    left = min(columns[item] - width(item) // 2 for item in columns)
    return {item: column - left for item, column in columns.items()}


def _with_boundary(band: Sequence[str], middles: Mapping[Item, int], layout: Layout, right: int) -> list[str]:
    """The band with the line between the two worlds above it."""
    crossing = {middles[above] for above, below in layout.links if below.layer == layout.boundary}
    above, below = "per group, as they come ", "per step, as a batch "
    total = max(right, max(crossing, default=0) + len(above) + 4)
    dashes, plain = ["╌"] * (total + 1), [" "] * (total + 1)
    for column in crossing:
        dashes[column], plain[column] = "┼", "│"
    start = max(crossing, default=0) + 3

    def said(text: str) -> str:
        line = plain.copy()
        line[start : start + len(text)] = text
        return "".join(line).rstrip()

    straight = all(set(line) <= {" ", "│"} for line in band)
    return [said(above), "".join(dashes), said(below), *([] if straight else band)]


def _band(links: Sequence[tuple[int, int]], narrow: frozenset[int] = frozenset()) -> list[str]:
    """The lines between two layers, from columns above to columns below (``narrow`` ones have room for one line)."""
    nets = _with_ports(_nets(links), narrow)
    tracks = _tracks([net for net in nets if len({*net[0], *net[1]}) > 1])
    height = max([1, *(track + 1 for _, track in tracks)])
    cells = [[0] * (1 + max((max(*above, *below) for above, below in nets), default=0)) for _ in range(height)]
    for above, below in nets:
        if len({*above, *below}) == 1:
            for row in cells:
                row[above[0]] |= _UP | _DOWN
    for (above, below), track in tracks:
        ends = {*above, *below}
        for column in range(min(ends), max(ends) + 1):
            cells[track][column] |= (_LEFT if column > min(ends) else 0) | (_RIGHT if column < max(ends) else 0)
        for column in above:
            cells[track][column] |= _UP
            for row in cells[:track]:
                row[column] |= _UP | _DOWN
        for column in below:
            cells[track][column] |= _DOWN
            for row in cells[track + 1 :]:
                row[column] |= _UP | _DOWN
    return ["".join(_LINES[cell] for cell in row).rstrip() for row in cells]


_Net = tuple[tuple[int, ...], tuple[int, ...]]


def _nets(links: Sequence[tuple[int, int]]) -> list[_Net]:
    """Links that may share a line: those of several sources where each goes to the same targets."""
    targets: dict[int, set[int]] = {}
    for above, below in links:
        targets.setdefault(above, set()).add(below)
    nets: dict[tuple[int, ...], list[int]] = {}
    for above, below in targets.items():
        nets.setdefault(tuple(sorted(below)), []).append(above)
    return [(tuple(sorted(above)), below) for below, above in nets.items()]


def _with_ports(nets: Sequence[_Net], narrow: frozenset[int]) -> list[_Net]:
    """Give lines that would seem to join at a target, or at the source of another line, columns beside each other."""
    entering: dict[int, list[int]] = {}
    for number, (_, below) in sorted(enumerate(nets), key=lambda net: sum(net[1][0]) / len(net[1][0])):
        for column in below:
            entering.setdefault(column, []).append(number)

    def port(number: int, column: int) -> int:
        above, others = nets[number][0], entering[column]
        if len(others) > 1:
            return column + 2 * others.index(number) - len(others) + 1
        leaves = any(column in net[0] and net[1] != (column,) for i, net in enumerate(nets) if i != number)
        return column + (2 if min(above) > column else -2) if leaves and column not in narrow and column > 1 else column

    return [(above, tuple(port(number, column) for column in below)) for number, (above, below) in enumerate(nets)]


def _tracks(nets: Sequence[_Net]) -> list[tuple[_Net, int]]:
    """A row for each net, so that none runs over another: not along it, and not down into its way."""
    placed: list[tuple[_Net, int]] = []
    waiting = sorted(nets, key=lambda net: (min(*net[0], *net[1]), net))
    while waiting:
        # A line coming down from a column must have turned before another goes down from its turn in that column.
        free = [net for net in waiting if not any(other is not net and {*other[0]} & {*net[1]} for other in waiting)]
        net = (free or waiting)[0]
        waiting.remove(net)
        low, high = min(*net[0], *net[1]), max(*net[0], *net[1])
        above = [
            track + 1
            for other, track in placed
            if (min(*other[0], *other[1]) <= high and max(*other[0], *other[1]) >= low)
        ]
        placed.append((net, max(above, default=0)))
    return placed


def _table(graph: Graph) -> str:
    rows = [("node", "calls", "on", "reads", "gives", "with")]
    for spec in graph.nodes:
        reads = ", ".join(
            f"{name}={id}"
            if isinstance(id, str) and id != name
            else id
            if isinstance(id, str)
            else f"*{', *'.join(id)}"
            for name, id in spec.inputs.items()
        )
        shown = ((name, brief(value)) for name, value in spec.settings.items())
        settings = ", ".join(f"{name}={_cut(text)}" for name, text in shown if text)
        rows.append((spec.id, spec.use, spec.model or "", reads, spec.output, settings))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
