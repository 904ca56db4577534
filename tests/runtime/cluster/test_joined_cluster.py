"""A cluster that is joined: what does not answer is told, two hosts are used as they are, and nothing of ours stays."""

import asyncio
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
import ray
from leftovers import nothing_left
from ray.cluster_utils import Cluster as Hosts
from small_runs import recipe

from stretto.api.runs import resume, start
from stretto.config.sections import RayCluster
from stretto.errors import ConfigError, PoolError, RunError
from stretto.runtime.cluster.ray_cluster import open_cluster
from stretto.runtime.cluster.seats import Needs
from stretto.runtime.disposer import Disposer
from stretto.store.compare import compare_runs

pytestmark = pytest.mark.ray


async def opened(inside, **config):
    async with Disposer() as disposer:
        cluster = await open_cluster(RayCluster(**config), disposer)
        return await inside(cluster)


async def nothing(cluster):
    """To do with it."""


@pytest.fixture
def hosts():
    """A head with three chips; its folder's name is short, as the paths of sockets must be."""
    folder = tempfile.mkdtemp(prefix="hosts-")
    (Path(tempfile.gettempdir()) / "ray").mkdir(exist_ok=True)  # Ray notes the cluster there, wherever its folder is
    head = {"num_cpus": 1, "resources": {"chip": 3}, "node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Hosts(initialize_head=True, head_node_args={**head, "temp_dir": folder})
    yield cluster
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def beside(hosts):
    """A second host, with two chips."""
    return hosts.add_node(num_cpus=1, resources={"chip": 2}, node_ip_address="127.0.0.3")


class Asked:
    async def where(self):
        return ray.get_runtime_context().get_node_id()


def left_there(hosts):
    """Actors and placement groups that are not gone, and hosts that are there."""
    ray.init(address=hosts.address, log_to_driver=False, configure_logging=False)
    try:
        actors = [actor for actor in ray._private.state.actors().values() if actor["State"] != "DEAD"]
        groups = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
        return actors, groups, sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:1", "the Ray cluster at 127.0.0.1:1 cannot be joined: connection refused. Mend that"),
        ("127.0.0.1:99999", "cannot be joined: "),
        ("somewhere", "cluster.address is host:port, or auto, and not 'somewhere'"),
    ],
)
def test_where_nothing_listens(address, told):
    with nothing_left(files=False), pytest.raises(ConfigError) as caught:
        asyncio.run(opened(nothing, address=address))
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_what_listens_and_never_answers_is_given_up_in_time():
    with socket.create_server(("127.0.0.1", 0)) as listening, nothing_left(files=False):
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"did not answer as Ray does within 3 s"):
            asyncio.run(opened(nothing, address=address, start_timeout_s=3))


def test_workers_sit_where_their_seats_are_and_move_when_a_host_goes(hosts):
    second = beside(hosts)

    async def use(cluster):
        with pytest.raises(ConfigError, match=r"need 6 devices .* has 5 of chip on 2 hosts"):
            await cluster.seats(Needs(learners=2, rollers=4))
        seats = await cluster.seats(Needs(learners=1, rollers=2))
        assert [(s.host.address, s.number) for s in seats] == [("127.0.0.2", 0), ("127.0.0.2", 1), ("127.0.0.3", 0)]
        actors = [await cluster.make(Asked, (), seat, 1) for seat in seats]
        there = [await cluster.within("one", actor.where.remote()) for actor in actors]
        assert there == [seat.host.node for seat in seats]
        hosts.remove_node(second)
        while (moved := await cluster.again("roller-1", seats[2])) == seats[2]:
            await asyncio.sleep(0.05)
        assert (moved.host.address, moved.number) == ("127.0.0.2", 2)
        actor = await cluster.make(Asked, (), moved, 1)
        assert await cluster.within("one", actor.where.remote()) == seats[0].host.node
        with pytest.raises(RunError, match=r"roller-1 cannot be started again: its host 127.0.0.3 left .*free chip"):
            await cluster.again("roller-1", seats[2])

    asyncio.run(opened(use, address=hosts.address, device="chip"))
    assert left_there(hosts) == ([], [], 1)


@pytest.mark.slow
def test_a_host_that_goes_ends_a_run_by_name_at_most_and_the_cluster_stays(hosts, tmp_path):
    # pitfall 32
    quiet = start(recipe(tmp_path, "quiet"))
    second, gone = beside(hosts), []

    def remove(event):
        if (event.kind, event.step, event.phase) == ("group", 2, "main") and not gone:
            gone.append(True)
            hosts.remove_node(second)

    where = {"type": "ray", "address": hosts.address, "device": "chip", "heartbeat_s": 0.2}
    told = ""
    try:
        view = start(recipe(tmp_path, "run", cluster=where, placement={"rollers": 2}), observer=remove)
    except PoolError as error:  # it held groups that were finished, and that nobody had taken
        told = str(error)
        view = resume(tmp_path / "run")
    assert not told or "are lost with the host that held them" in told
    assert view.status == "done" and gone
    assert compare_runs(quiet.path, view.path) == []
    assert left_there(hosts) == ([], [], 1)
