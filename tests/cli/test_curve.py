"""The learning curve, drawn in a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cli.curve import Curve, Point, curve_of, draw_chart


def test_the_phases_stand_on_one_axis(view):
    curve = curve_of(view, "grpo")
    assert (curve.boundary, curve.end) == (60, 260)
    assert [p.x for p in curve.warmup] == [10, 20, 30, 40, 50, 60]
    assert [p.x for p in curve.main] == [60, 110, 160, 210, 260]
    assert curve.main[0].value == 0.473
    assert len(curve.reward) == 200


@pytest.mark.parametrize("unicode", [True, False])
def test_the_chart_tells_the_phases_apart(view, unicode):
    chart = draw_chart(curve_of(view, "grpo"), unicode=unicode)
    main, warm, edge = ("●", "○", "┊") if unicode else ("*", "o", ":")
    body = chart.splitlines()[:13]
    assert sum(line.count(main) for line in body) == 5
    assert sum(line.count(warm) for line in body) >= 5  # the last one may be covered by the first of the main phase
    assert sum(line.count(edge) for line in body) >= 10
    assert all(line.index(warm) < line.index(edge) for line in body if warm in line and edge in line)
    assert "warm-up: 60 steps" in chart
    assert "grpo: 200 steps" in chart
    assert chart.isascii() != unicode
    assert max(map(len, chart.splitlines())) <= 72


values = st.floats(-50, 50)


@given(
    boundary=st.integers(0, 500),
    num_main=st.integers(0, 500),
    found=st.lists(values, max_size=30),
    width=st.integers(30, 200),
)
def test_any_curve_can_be_drawn(boundary, num_main, found, width):
    end = boundary + num_main
    points = tuple(Point(boundary + i * num_main // len(found), v) for i, v in enumerate(found))
    accuracies = tuple(Point(p.x, min(max(p.value, 0.0), 1.0)) for p in points)
    curve = Curve(boundary=boundary, end=end, warmup=(), main=accuracies, reward=points)
    assert all(line.rstrip() == line for line in draw_chart(curve, width=width).splitlines())
