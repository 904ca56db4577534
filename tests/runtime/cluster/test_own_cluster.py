"""A cluster that is started for a run: it is heard on this machine only, and nothing of it is left on any way out."""

import asyncio
import ipaddress
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from leftovers import gone, names_in, nothing_left, ports_of

from stretto.config.sections import RayCluster
from stretto.errors import ConfigError, RunError, WorkerLost
from stretto.runtime.cluster.guard import PREFIX, processes_of
from stretto.runtime.cluster.loopback import ADDRESS, on_loopback
from stretto.runtime.cluster.ray_cluster import Cluster, open_cluster
from stretto.runtime.cluster.seats import Needs
from stretto.runtime.disposer import Disposer
from stretto.runtime.remote.workers import RemoteWorker

pytestmark = pytest.mark.ray


class Opening:
    """A worker that dies, or never ends, while it opens what it holds."""

    async def open(self, how):
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(600)


class Asked:
    async def who(self):
        return os.getpid(), os.environ["OMP_NUM_THREADS"], os.environ["PYTHONPATH"]


async def opened(inside, **config):
    async with Disposer() as disposer:
        cluster = await open_cluster(RayCluster(**config), disposer)
        return await inside(cluster)


async def nothing(cluster):
    """To do with it."""


def folders():
    place = Path(tempfile.gettempdir())  # of this test alone
    return {str(place / name) for name in names_in(place) if name.startswith(PREFIX)}


def test_every_port_is_bound_to_loopback_and_what_is_of_another_cluster_lives_on():
    # pitfall 37
    before = folders()

    async def look(cluster):
        (seat,) = await cluster.seats(Needs(learners=0, rollers=1))
        actor = await cluster.make(Asked, (), seat, 3)
        pid, threads, places = await cluster.within("one", actor.who.remote())
        (folder,) = folders() - before
        there = [psutil.Process(), *processes_of(folder)]
        assert pid in {process.pid for process in there}
        return ports_of(there), threads, places

    other = psutil.Popen(["bash", "-c", "exec -a ray::IDLE sleep 60"])
    try:
        with nothing_left(files=False):
            ports, threads, places = asyncio.run(opened(look))
        assert len(ports) >= 5
        listening = {
            (getattr(ipaddress.ip_address(ip), "ipv4_mapped", None) or ipaddress.ip_address(ip)) for ip, _ in ports
        }
        assert {str(address) for address in listening} == {"127.0.0.1"}
        assert threads == "3" and "site-packages" not in places
        assert any(place.endswith("src") for place in places.split(os.pathsep))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_worker_that_dies_or_hangs_while_it_opens_is_named():
    # pitfall 32
    async def use(cluster):
        seats = await cluster.seats(Needs(learners=0, rollers=2))
        actors = [await cluster.make(Opening, (), seat, 1) for seat in seats]
        dying, hanging = (RemoteWorker(f"roller-{number}", actor) for number, actor in enumerate(actors))
        with pytest.raises(WorkerLost, match=r"roller-0 \(process \d+ on this machine\) was lost: it died"):
            await cluster.within(dying.name, dying.call("open", "die"), "open")
        hasty = Cluster(RayCluster(start_timeout_s=0.5))
        with pytest.raises(RunError, match=r"roller-1 was not open after 0.5 s\. Look at .*cluster.start_timeout_s"):
            await hasty.within(hanging.name, hanging.call("open", "hang"), "open")

    with nothing_left(files=False):
        asyncio.run(opened(use))


def test_ray_still_has_to_be_made_to():
    from ray._private.services import get_node_ip_address, resolve_ip_for_localhost

    if get_node_ip_address() == ADDRESS:
        pytest.skip("this machine has no other address")
    assert resolve_ip_for_localhost(ADDRESS) != ADDRESS, "loopback.py is not needed any more"
    with on_loopback():
        assert resolve_ip_for_localhost(ADDRESS) == ADDRESS


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"start_timeout_s": 0.01}, "was not up here after 0.01 s"),
        ({"object_store": "1000TiB"}, "could not be started here: After taking into account object store"),
        ({"object_store": "1MiB"}, "the minimum allowed is 78643200 bytes. Mend that"),
    ],
)
def test_what_cannot_be_started_is_told_in_a_sentence_and_leaves_nothing(config, told):
    with nothing_left(files=False), pytest.raises(ConfigError) as caught:
        asyncio.run(opened(nothing, **config))
    message = str(caught.value)
    assert told in message and "\n" not in message and len(message) < 400


def test_a_process_that_is_killed_while_it_starts_one_leaves_nothing():
    # pitfall 31
    before = folders()
    code = (
        "import asyncio, os, signal, threading, time\n"
        "from stretto.config.sections import RayCluster\n"
        "from stretto.runtime.cluster.guard import processes_of\n"
        "from stretto.runtime.cluster.own import OwnCluster\n"
        "own = OwnCluster(RayCluster())\n"
        "def die():\n"
        "    while own.folder is None or not (there := list(processes_of(str(own.folder)))): time.sleep(0.01)\n"
        "    print(*[process.pid for process in there], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "threading.Thread(target=die).start()\n"
        "asyncio.run(own.start())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert gone([psutil.Process(int(pid)) for pid in ended.stdout.split() if psutil.pid_exists(int(pid))])
    for folder in folders() - before:
        assert gone(list(processes_of(folder)))
