"""Process groups: every axis of every layout, each set of ranks once, in one order."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stretto.plan.cluster import Layout
from stretto.plan.process_groups import process_groups

layouts = st.builds(
    Layout, replicas=st.integers(1, 3), shards=st.integers(1, 4), tensor=st.integers(1, 2), context=st.integers(1, 2)
)


@given(st.lists(layouts, min_size=1, max_size=3))
def test_every_axis_partitions_the_ranks_and_no_set_comes_twice(found):
    seats, begin = {}, 0
    for number, layout in enumerate(found):
        seats[f"m{number}"] = (range(begin, begin + layout.size), layout)
        begin += layout.size
    groups = process_groups(seats)
    assert len({g.ranks for g in groups}) == len(groups)
    for name, (ranks, layout) in seats.items():
        assert any(g.ranks == tuple(ranks) for g in groups)
        for axis in ("tensor", "context", "shards", "replicas"):
            length = getattr(layout, axis)
            if length in (1, layout.size):
                continue
            own = [g.ranks for g in groups if set(g.ranks) <= set(ranks) and len(g.ranks) == length]
            assert set(itertools.chain(*own)) == set(ranks), (name, axis)
    assert process_groups(dict(reversed(seats.items()))) == groups


def test_by_hand():
    groups = process_groups({"policy": (range(4), Layout(replicas=2, shards=2)), "critic": ((4, 5), Layout(shards=2))})
    assert [(g.name, g.ranks) for g in groups] == [
        ("critic", (4, 5)),
        ("policy", (0, 1, 2, 3)),
        ("policy shard 0", (0, 1)),
        ("policy shard 1", (2, 3)),
        ("policy replica 0", (0, 2)),
        ("policy replica 1", (1, 3)),
    ]
