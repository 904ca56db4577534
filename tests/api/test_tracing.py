"""``stretto runs trace``: a timeline whose spans are those of the record."""

import itertools
import json

import pytest

from stretto.api import start
from stretto.api.tracing import trace_events
from stretto.cli.main import main
from stretto.config.load import recipe_from_mapping

FAKE = {
    "name": "mine",
    "steps": 3,
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "prompts": {"type": "builtin", "name": "addition", "max": 12},
    "schedule": {"groups_per_step": 2},
    "reward": {"use": "exact_match", "workers": 0},
}


@pytest.fixture
def view(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return start(recipe_from_mapping(FAKE))


def _of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_every_node_of_every_draw_and_step_is_there_once_on_one_clock(view):
    events = list(trace_events(view))
    begun, ended = _of(events, "b"), _of(events, "e")
    groups = [e.body for e in view.events if e.kind == "group"]
    wanted = {(n.id, g.draw): n.duration_s for g in groups for n in g.nodes}
    assert len(begun) == len(ended) == len(wanted) > 6
    closes = {event["id"]: event["ts"] for event in ended}
    for event in begun:
        took = (closes[event["id"]] - event["ts"]) / 1e6
        assert took == pytest.approx(wanted[event["name"], event["args"]["draw"]], abs=1e-5)
    spans = _of(events, "X")
    learner = [s["name"] for s in spans if s["cat"] == "learner" and s["name"] != "idle"]
    assert learner == [e.body.id for e in view.events if e.kind == "node"]
    assert sum(s["name"] == "publish" for s in spans) == len([e for e in view.events if e.kind == "publish"])
    assert [s["name"] for s in spans if s["name"].startswith("main step")] == [f"main step {i}" for i in range(3)]
    last = max(e.time_s for e in view.events) - view.events[0].time_s
    assert all(-1.0 < event["ts"] / 1e6 <= last + 1.0 for event in events if "ts" in event)


def test_idle_is_where_nothing_else_of_its_lane_is(view):
    spans = [s for s in _of(trace_events(view), "X") if s["cat"] == "learner"]
    spans.sort(key=lambda s: s["ts"])
    assert any(s["name"] == "idle" for s in spans)
    for one, other in itertools.pairwise(spans):
        assert other["ts"] == pytest.approx(one["ts"] + one["dur"], abs=1.0)


def test_lanes_have_names_and_numbers_of_their_own(view):
    events = list(trace_events(view))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] in ("X", "b")} == set(names)
    assert len(set(names.values())) == len(names)


def test_the_command(view, capsys, tmp_path):
    assert main(["runs", "trace", "mine"]) == 0
    assert "mine-trace.json" in capsys.readouterr().out
    record = json.loads((tmp_path / "mine-trace.json").read_text())
    assert record["traceEvents"] == list(trace_events(view))
    assert main(["runs", "trace", "mine", "-o", "no/such/folder.json"]) == 2
    assert "no/such/folder.json" in capsys.readouterr().err
    assert main(["runs", "trace", "other"]) == 2
