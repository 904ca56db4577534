"""Laws of pieces and programs, over thousands of random graphs."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import ConfigError
from stretto.plan.split import make_programs, split


def random_reads(rng, size, most=3, far=None):
    """A random graph: each node reads some of those before it."""
    reads = {}
    for number in range(size):
        low = 0 if far is None else max(0, number - far)
        count = min(rng.randint(0, most), number - low)
        reads[f"n{number}"] = [f"n{i}" for i in rng.sample(range(low, number), count)]
    return reads


@st.composite
def graphs(draw):
    return random_reads(random.Random(draw(st.integers(0, 2**32))), draw(st.integers(1, 40)))


def reachable(reads):
    """By node, every node before it that it depends on."""
    found = {}
    for node, parents in reads.items():
        found[node] = set(parents).union(*(found[parent] for parent in parents)) if parents else set()
    return found


@settings(max_examples=1500, deadline=None)
@given(graphs())
def test_pieces_are_irreducible_chains_and_cover_all_once(reads):
    pieces = split(reads)
    assert sorted(node for piece in pieces for node in piece) == sorted(reads)
    readers = {node: [n for n, parents in reads.items() if node in parents] for node in reads}
    for piece in pieces:
        for before, after in pairwise(piece):
            assert list(dict.fromkeys(reads[after])) == [before] and readers[before] == [after]  # nothing beside it
    ends = {piece[0]: piece for piece in pieces}
    for piece in pieces:  # longest: no two pieces could be one
        follower = readers[piece[-1]]
        assert not (len(follower) == 1 and follower[0] in ends and set(reads[follower[0]]) == {piece[-1]})


def test_a_chain_is_one_piece_and_a_diamond_four():
    assert split({"a": [], "b": ["a"], "c": ["b"]}) == [("a", "b", "c")]
    assert split({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}) == [("a",), ("b",), ("c",), ("d",)]
    assert split({"a": [], "b": ["a", "a"]}) == [("a", "b")]


SETS = ("policy", "critic", "reference", "teacher")


def seated(rng, reads):
    some = {node: rng.choice(SETS) for node in reads if rng.random() < 0.5}
    return some or {next(iter(reads)): "policy"}


@settings(max_examples=1500, deadline=None)
@given(graphs(), st.integers(0, 2**32))
def test_programs_run_every_node_once_and_never_wait_for_each_other(reads, seed):
    rng = random.Random(seed)
    seats = seated(rng, reads)
    programs = make_programs(reads, seats)
    assert sorted(node for p in programs for node in p.nodes) == sorted(reads)
    assert len({p.ranks for p in programs}) == len(programs)
    for p in programs:
        assert all(seats.get(node, p.ranks) == p.ranks for node in p.nodes)
    run(rng, reads, programs)


def run(rng, reads, programs):
    """All programs at once, in any interleaving: each node sees all it reads, and all come to their ends."""
    at = [0] * len(programs)
    here = [set() for _ in programs]  # values that are at a rank set
    wire = set()
    done = []
    while any(at[i] < len(p.nodes) for i, p in enumerate(programs)):
        ready = []
        for i, p in enumerate(programs):
            if at[i] < len(p.nodes):
                waits = p.receives.get(p.nodes[at[i]], ())
                if all((t.node, t.target) in wire for t in waits):
                    ready.append(i)
        assert ready, "every program waits for another"
        i = rng.choice(ready)
        p, node = programs[i], programs[i].nodes[at[i]]
        here[i] |= {t.node for t in p.receives.get(node, ())}
        assert set(reads[node]) <= here[i], (node, reads[node])
        here[i].add(node)
        done.append(node)
        for t in p.sends.get(node, ()):
            assert t.source == p.ranks and (t.node, t.target) not in wire, "sent once"
            wire.add((t.node, t.target))
        at[i] += 1
    assert len(done) == len(reads)


@settings(max_examples=300, deadline=None)
@given(graphs(), st.integers(0, 2**32))
def test_all_programs_follow_one_order(reads, seed):
    """So ranks that are in several rank sets, and take their programs together, agree on the order of collectives."""
    order = {node: number for number, node in enumerate(reads)}
    for p in make_programs(reads, seated(random.Random(seed), reads)):
        assert list(p.nodes) == sorted(p.nodes, key=order.__getitem__)


def test_what_needs_no_model_runs_where_it_is_read():
    reads = {
        "ref": [],
        "value": [],
        "credit": ["ref", "value"],
        "fit": ["credit"],
        "learn": ["credit"],
        "report": ["fit", "learn"],
    }
    seats = {"ref": "reference", "value": "critic", "fit": "critic", "learn": "policy"}
    by = {p.ranks: p for p in make_programs(reads, seats)}
    assert by["critic"].nodes == ("value", "credit", "fit")  # fit reads credit first
    assert by["policy"].nodes == ("learn", "report")  # report reads learn last
    assert [t.node for t in by["policy"].receives["learn"]] == ["credit"]
    assert [t.node for t in by["policy"].receives["report"]] == ["fit"]


def test_a_step_without_a_model_is_refused():
    with pytest.raises(ConfigError, match="no node of the step has a Model"):
        make_programs({"a": []}, {})


def test_ten_thousand_nodes_are_split_at_once():
    reads = random_reads(random.Random(0), 10_000, far=50)
    assert sum(map(len, split(reads))) == 10_000
    programs = make_programs(reads, seated(random.Random(1), reads))
    assert sum(len(p.nodes) for p in programs) == 10_000
