"""Drawings: what stands where, that lines meet, that text is escaped."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from stretto.graph import draw_svg, draw_text, load_graph, node, workflow
from stretto.graph.settings import brief
from stretto.graph.text import _band
from stretto.types import Batch, Column, Group, Prompt, StepReport
from stretto.workflows.nodes import rollout


@node
def join(*parts: Column | Batch) -> Column: ...


@node
def end(*parts: Column) -> StepReport: ...


def test_ppo_as_text(kit, ppo):
    lines = draw_text(load_graph(ppo, kit.all)).splitlines()
    (row,) = [number for number, line in enumerate(lines) if "[ref: logprobs (reference)]" in line]
    # Reference log-probs and values stand side by side, between the batch and gae, where they join.
    assert "[value: values (critic)]" in lines[row]
    assert "[batch: collect]" in lines[row - 2]
    fork, join, below = lines[row - 1].strip(), lines[row + 1].strip(), lines[row + 2].strip()
    assert (fork[0], fork[-1], fork.count("┴")) == ("┌", "┐", 1)
    assert (join[0], join[-1], join.count("┬")) == ("└", "┘", 1)
    assert below == "[credit: gae]"
    assert lines[row + 2].index("[") < lines[row + 1].index("┬") < lines[row + 2].index("]")
    (boundary,) = [number for number, line in enumerate(lines) if "╌" in line]
    assert "[scored: score]" in lines[boundary - 2]
    assert "┼" in lines[boundary]
    assert any("batch, credit, ref" in line and line.strip().startswith("learn") for line in lines)


def test_lines_between_layers():
    assert _band([(3, 3)]) == ["   │"]
    assert _band([(4, 1), (4, 7)]) == [" ┌──┴──┐"]
    assert _band([(1, 4), (7, 4)]) == [" └──┬──┘"]
    assert _band([(0, 0), (0, 6), (6, 0), (6, 6)]) == ["├─────┤"]
    # Two lines into one place arrive side by side.
    assert _band([(0, 0), (0, 8), (16, 8)]) == ["├──────┐ ┌──────┘"]
    assert _band([(0, 0), (0, 6), (6, 6)]) == ["├────┐└┐"]
    # Lines that change sides cross once, and meet nowhere.
    assert _band([(4, 12), (12, 4)]) == ["    └─────┐ │", "      ┌───┼─┘"]


@settings(max_examples=300, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=10))
def test_every_line_leaves_its_source_and_reaches_its_target(pairs):
    band = _band(sorted((10 * a, 10 * b) for a, b in pairs))
    ups = {column for column, sign in enumerate(band[0]) if sign in "│└┘┴├┤┼╵"}
    downs = {column for column, sign in enumerate(band[-1]) if sign in "│┌┐┬├┤┼╷"}
    assert {10 * a for a, _ in pairs} <= ups
    for target in {b for _, b in pairs}:
        assert any(abs(10 * target - column) <= 5 for column in downs)


def test_ppo_as_svg(kit, ppo):
    ppo["workflow"] = 'a "b" <c> & d'
    next(item for item in ppo["nodes"] if item["id"] == "ref")["on"] = "<teacher> & 'co'"
    text = draw_svg(load_graph(ppo, kit.all))
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert 'a "b" <c> & d' in texts
    assert "<teacher> & 'co'" in texts
    assert {"per group, as they come", "per step, as a batch"} <= set(texts)
    paths = [element for element in root.iter(f"{space}path") if "edge" in element.get("class", "")]
    assert len(paths) == 1 + 1 + 1 + 2 + 3 + 2 + 3 + 2
    assert len(list(root.iter(f"{space}line"))) == 1
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = [e for e in root.iter(f"{space}rect") if e.get("class") in ("box", "start")]
    assert len(boxes) == 10
    spans = [[float(e.get(k)) for k in ("x", "y", "width", "height")] for e in boxes]
    for x, y, w, h in spans:
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    for i, (x, y, w, _) in enumerate(spans):
        for ox, oy, ow, _ in spans[i + 1 :]:
            assert y != oy or x + w < ox or ox + ow < x


class Inner(BaseModel):
    share: float = 0.5


class Part(BaseModel):
    type: str = "part"
    word: str = "mean"
    limit: float | None = 2.0
    inner: Inner = Inner()
    names: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True)
class Plain:
    size: int = 1
    flag: bool = False


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Part(), "part"),
        (Part(word="none", limit=None), "part(word=none, limit=null)"),
        (Part(inner=Inner(share=1), names={"a": 2}), "part(inner=(share=1.0), names={a: 2.0})"),
        (Inner(), ""),
        (Plain(flag=True), "(flag=true)"),
        (Plain(), ""),
        ((1, None, "two"), "[1, null, two]"),
        (None, ""),
        (0.25, "0.25"),
    ],
)
def test_a_setting_is_shown_by_what_differs_from_its_defaults(value, shown):
    assert brief(value) == shown


@node
def weigh(groups: tuple[Group, ...], *, part: Part = Part(), none: Inner = Inner(), n: int = 3) -> Batch: ...


@node
def tell(batch: Batch) -> StepReport: ...


def test_settings_stand_in_the_table_and_on_the_boxes():
    @workflow
    def mine(prompt: Prompt) -> StepReport:
        return tell(weigh(rollout(prompt), part=Part(word="none", names={"a-long-name": 1.5, "another-name": 2.5})))

    graph = mine.graph()
    shown = "part=part(word=none, names={a-long-name: 1.5, another-name: 2.5})"
    (row,) = [line for line in draw_text(graph).splitlines() if line.strip().startswith("weigh ")]
    assert row.rstrip().endswith(f"{shown[:59]}…, n=3") or row.rstrip().endswith(f"{shown}, n=3")
    root = ET.fromstring(draw_svg(graph))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [t for t in texts if t.startswith("weigh · part=part(word=none") and t.endswith("…")]
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert [t for t in titles if t.endswith(f"gives Batch\n{shown}\nn=3")]


@pytest.mark.parametrize("wide", [1, 12])
def test_wide_and_long_graphs_are_drawn(kit, n, wide):
    nodes = [n("group", "rollout", prompt="prompt"), n("batch", "collect", groups="group")]
    nodes += [n(f"c{i}", "join", parts=["batch", *([f"c{i - wide}"] if i >= wide else [])]) for i in range(12)]
    last = [f"c{i}" for i in range(12 - wide, 12)]
    nodes += [n("end", "end", parts=last)]
    graph = load_graph({"workflow": "w", "nodes": nodes, "output": "end"}, kit.all | {"join": join, "end": end})
    text = draw_text(graph)
    assert all(f"[c{i}: join]" in text for i in range(12))
    ET.fromstring(draw_svg(graph))
