"""Seats: in a fixed order, learners host by host, rollers where there is room, no device twice; too few are refused."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import ConfigError
from stretto.runtime.cluster.seats import Host, Needs, hosts_of, take_seats


def node(name, address, alive=True, **resources):
    return {"NodeID": name, "NodeManagerAddress": address, "Alive": alive, "Resources": resources}


def host(name, num_devices=None, num_cores=4):
    return Host(node=name, address="10.0.0.1", num_cores=num_cores, num_devices=num_devices)


def test_hosts_are_in_the_order_of_addresses_then_nodes():
    nodes = [node("c", "10.0.0.2", CPU=4), node("b", "10.0.0.1", CPU=2), node("a", "10.0.0.2", CPU=1)]
    assert [(h.node, h.num_cores) for h in hosts_of(nodes, "cpu")] == [("b", 2), ("a", 1), ("c", 4)]
    assert hosts_of(nodes, "cpu") == hosts_of(nodes[::-1], "cpu")


def test_hosts_that_are_gone_or_have_no_device_have_no_seats():
    nodes = [
        node("a", "10.0.0.1", CPU=4, GPU=2.0),
        node("b", "10.0.0.2", alive=False, CPU=4, GPU=8.0, chip=8),
        node("c", "10.0.0.3", CPU=0, chip=1),
    ]
    assert [(h.node, h.num_devices) for h in hosts_of(nodes, "gpu")] == [("a", 2)]
    assert [(h.node, h.num_devices) for h in hosts_of(nodes, "chip")] == [("c", 1)]
    assert [(h.node, h.num_devices) for h in hosts_of(nodes, "cpu")] == [("a", None)]
    assert [h.node for h in hosts_of(nodes[2:], "cpu")] == ["c"], "cores are no limit if nothing has any"


def test_learners_fill_a_host_before_the_next_and_rollers_go_where_there_is_room():
    seats = take_seats([host("a", 4), host("b", 4), host("c", 4)], Needs(learners=5, rollers=4), "gpu")
    assert [(s.host.node, s.number) for s in seats[:5]] == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0)]
    assert [(s.host.node, s.number) for s in seats[5:]] == [("c", 0), ("b", 1), ("c", 1), ("b", 2)]


def test_where_nothing_is_counted_cores_say_how_workers_spread_and_are_no_limit():
    seats = take_seats([host("a", num_cores=1), host("b", num_cores=2)], Needs(learners=4, rollers=2), "cpu")
    assert [s.host.node for s in seats] == ["a", "b", "b", "a", "b", "a"]


def test_too_few_devices_are_refused_with_the_numbers():
    with pytest.raises(
        ConfigError,
        match=r"need 5 devices \(2 for learners, 3 for rollers\).* has 4 of GPU on 2 hosts.*Lower placement",
    ):
        take_seats([host("a", 3), host("b", 1)], Needs(learners=2, rollers=3), "gpu")
    with pytest.raises(ConfigError, match="has 0 of chip on 0 hosts"):
        take_seats([], Needs(learners=1, rollers=1), "chip")


def test_a_worker_has_its_share_of_the_cores_and_one_at_least():
    threads = [s.num_threads for s in take_seats([host("a", num_cores=7)], Needs(learners=1, rollers=2), "cpu")]
    assert threads == [2, 2, 2]
    crowded = take_seats([host("a", num_cores=1)], Needs(learners=3, rollers=2), "cpu")
    assert {s.num_threads for s in crowded} == {1}


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 20), st.integers(1, 20))
def test_no_device_is_taken_twice_and_learners_use_as_few_hosts_as_their_order_allows(sizes, learners, rollers):
    hosts = [host(str(number), size) for number, size in enumerate(sizes)]
    needs = Needs(learners=learners, rollers=rollers)
    if sum(sizes) < learners + rollers:
        with pytest.raises(ConfigError):
            take_seats(hosts, needs, "gpu")
        return
    seats = take_seats(hosts, needs, "gpu")
    places = [(s.host.node, s.number) for s in seats]
    assert len(set(places)) == len(places) == learners + rollers
    assert all(s.number < (s.host.num_devices or 0) for s in seats)
    assert places[:learners] == [(h.node, number) for h in hosts for number in range(h.num_devices or 0)][:learners]
    assert Counter(s.host.node for s in seats) == {s.host.node: s.num_beside for s in seats}
