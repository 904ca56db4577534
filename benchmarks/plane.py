"""What handing groups from rollers to learners costs: the driver in bytes and CPU time, the store in bytes a second.

Driver: as in a run on Ray (fleet, rollers, learners, refs), with workers that are simulated: two processes play all of
them, half rollers and half learners, and make groups of 8 at once. Counted are the pickled bytes of what the driver
gets and sends for a trajectory, and the CPU time of its process.

Store: 1 GiB of groups from 2 and from 4 rollers to as many learners, against plain arrays by ray.put, ray.get and one
copy in the same run; and the same groups all through one actor. All processes on this machine, so on one host.

Predictions (written before the first run): 90 bytes a trajectory received and 30 sent, the same for 64 and for 4,096
tokens; CPU time 0.3 ms a worker and 0.15 ms a group; 0.8 of plain arrays, since packing is pickling with views; through
one actor a third of that.
"""

import asyncio
import os
import pickle
import sys
import time

import numpy as np
import ray

from stretto.plane.packed import pack, unpack
from stretto.plane.ray import Gathered, GatheringPlane, RayPlane
from stretto.runtime.drawn import Drawn
from stretto.runtime.fleet import Fleet
from stretto.runtime.remote.asking import Answer
from stretto.runtime.remote.handles import RemoteLearners, RemoteRoller
from stretto.runtime.remote.workers import RemoteWorker
from stretto.runtime.roller import Attempted, Draw
from stretto.runtime.worker import UNTRAINED
from stretto.store import NodeTime
from stretto.testing import make_group
from table import print_table, write_result

STEPS, WARM = 30, 5
GROUPS = 64
MOVED = 2**30
PIECES = 8


class Players:
    """One process that plays many workers."""

    def __init__(self, length):
        self._group = make_group(0, [float(i % 2) for i in range(8)], length)
        self._planes, self._done, self._some = {}, {}, {}
        self.bytes = {"answers": 0, "asked": 0, "steps": 0}

    async def begin(self, worker, asked):
        self.bytes["asked"] += len(pickle.dumps(asked, 5))
        plane = self._planes.setdefault(worker, GatheringPlane())
        now = time.time()
        nodes = tuple(NodeTime(id=id, start_s=now, duration_s=0.1, state="done") for id in ("group", "scored"))
        for one in asked:
            drawn = Drawn.of(one.args[0].draw, {"scored": self._group}, plane)
            made = Attempted(drawn=drawn, dropped=None, nodes=nodes, by=f"roller-{worker}")
            self._done.setdefault(worker, []).append(Answer(number=one.number, value=made))
        self._event(worker).set()

    def _event(self, worker):
        return self._some.setdefault(worker, asyncio.Event())

    async def finished(self, worker):
        await self._event(worker).wait()
        self._event(worker).clear()
        done = self._done.pop(worker, [])
        self.bytes["answers"] += len(pickle.dumps(done, 5))
        return done, self._planes[worker].gathered()

    async def call(self, worker, asked):
        self.bytes["steps"] += len(pickle.dumps(asked[1], 5))
        return UNTRAINED

    async def give_up(self, worker, numbers):
        raise AssertionError("nothing is given up here")

    async def counted(self):
        return self.bytes


class Played:
    """A method of one of the workers that a process plays, as a handle of an actor has it."""

    def __init__(self, method, worker):
        self._method, self._worker = method, worker

    def options(self, **options):
        return Played(self._method.options(**options), self._worker)

    def remote(self, *args):
        return self._method.remote(self._worker, *args)


class PlayedActor:
    def __init__(self, host, worker):
        self.begin, self.finished = Played(host.begin, worker), Played(host.finished, worker)
        self.call, self.give_up = Played(host.call, worker), Played(host.give_up, worker)


def no_step(worker, phase, step, refs):
    raise AssertionError("played")


async def drive(workers, groups, length):
    """CPU ms of the driver a step, and bytes a trajectory it received and sent."""
    hosts = [ray.remote(Players).options(num_cpus=0, max_concurrency=1000).remote(length) for _ in range(2)]
    plane = RayPlane()
    made = [RemoteWorker(f"w{n}", PlayedActor(hosts[n % 2], n)) for n in range(workers)]
    rollers = [RemoteRoller(worker, plane) for worker in made[: workers // 2]]
    fleet, learners = Fleet(rollers), RemoteLearners(made[workers // 2 :])
    for step in range(WARM + STEPS):
        if step == WARM:
            began = time.process_time()
            before = [await host.counted.remote() for host in hosts]
        draws = range(step * groups, (step + 1) * groups)
        found = await asyncio.gather(*(fleet.attempt(Draw(phase=1, draw=d, item=d, step=step)) for d in draws))
        refs = {"scored": tuple(made.drawn.refs["scored"] for made in found)}
        await learners.call(no_step, 1, step, refs)
        plane.free(refs["scored"])
    spent = (time.process_time() - began) / STEPS * 1e3
    after = [await host.counted.remote() for host in hosts]
    grew = {key: sum(a[key] - b[key] for a, b in zip(after, before, strict=True)) for key in after[0]}
    for host in hosts:
        ray.kill(host)
    rows = STEPS * groups * 8
    return spent, grew["answers"] / rows, (grew["asked"] + grew["steps"] / (workers // 2)) / rows


class Maker:
    """Has groups, or arrays of as many bytes, and hands out others each time: what was made is in no cache any more."""

    def __init__(self, each):
        length = 4096
        group = make_group(0, [0.0] * 8, length)
        size = sum(t.token_ids_T.nbytes + t.mask_T.nbytes + t.logprobs_T.nbytes for t in group.trajectories)
        count = max(1, each // size)
        self.size = size * count
        self.groups = [tuple(make_group(d, [0.0] * 8, length) for d in range(count)) for _ in range(PIECES)]
        self.arrays = [np.zeros(self.size, np.uint8) + 1 for _ in range(PIECES)]
        self.turn = 0

    def bytes(self):
        return self.size

    def give_groups(self):
        self.turn += 1
        return Gathered(pack(self.groups[self.turn % PIECES]))

    def give_array(self):
        self.turn += 1
        return self.arrays[self.turn % PIECES]


class Taker:
    """Gets what lies in the store, and copies it once, as a trainer does that packs it."""

    def take_groups(self, objects):
        total = 0
        for gathered in ray.get(objects):
            rows = [t for group in unpack(gathered.packed) for t in group.trajectories]
            for arrays in ([t.token_ids_T for t in rows], [t.mask_T for t in rows], [t.logprobs_T for t in rows]):
                total += np.concatenate(arrays).nbytes
        return total

    def take_arrays(self, objects):
        return sum(array.copy().nbytes for array in ray.get(objects))


class Hub:
    """Everything through one actor, by value."""

    def pass_on(self, gathered):
        return gathered


def move(pairs, how):
    """Bytes a second, of ``MOVED`` in pieces of 16 MiB from ``pairs`` makers to as many takers."""
    piece = 16 * 2**20
    makers = [ray.remote(Maker).options(num_cpus=0).remote(piece) for _ in range(pairs)]
    takers = [ray.remote(Taker).options(num_cpus=0).remote() for _ in range(pairs)]
    hub = ray.remote(Hub).options(num_cpus=0).remote()
    size = ray.get([maker.bytes.remote() for maker in makers])[0]
    give, take = ("give_array", "take_arrays") if how == "arrays" else ("give_groups", "take_groups")
    rounds = max(1, MOVED // (size * pairs))
    ray.get([getattr(taker, take).remote([getattr(makers[0], give).remote()]) for taker in takers])
    began = time.perf_counter()
    for _ in range(rounds):
        objects = [getattr(maker, give).remote() for maker in makers]
        if how == "hub":
            objects = [hub.pass_on.remote(each) for each in objects]
        ray.get([getattr(taker, take).remote([each]) for taker, each in zip(takers, objects, strict=True)])
    seconds = time.perf_counter() - began
    for actor in (*makers, *takers, hub):
        ray.kill(actor)
    return rounds * pairs * size / seconds


def main():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    ray.init(
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=3 * 2**30,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    driver = []
    for workers, groups, length in [
        (2, 64, 64),
        (8, 64, 64),
        (32, 64, 64),
        (64, 64, 64),
        (8, 16, 64),
        (8, 256, 64),
        (8, 64, 1024),
        (8, 64, 4096),
    ]:
        ms, received, sent = asyncio.run(drive(workers, groups, length))
        row = {"workers": workers, "groups": groups, "tokens a trajectory": length, "driver CPU ms a step": ms}
        driver.append({**row, "bytes received": received, "bytes sent": sent})
    print_table("Driver: a step, and bytes a trajectory", driver)
    few, many = driver[0], driver[3]
    each = (many["driver CPU ms a step"] - few["driver CPU ms a step"]) / (many["workers"] - few["workers"])
    print(f"a worker more costs the driver {each:.3f} ms a step")
    moved = []
    for pairs in (2, 4):
        arrays = np.median([move(pairs, "arrays") for _ in range(3)])
        groups = np.median([move(pairs, "groups") for _ in range(3)])
        hub = np.median([move(pairs, "hub") for _ in range(3)])
        row = {"rollers and learners": pairs, "plain arrays GB/s": arrays / 1e9}
        moved.append({**row, "groups / arrays": groups / arrays, "through one actor / arrays": hub / arrays})
    print_table("Store: 1 GiB moved", moved)
    ray.shutdown()
    write_result("plane", {"driver": driver, "ms_a_worker": each, "moved": moved})


if __name__ == "__main__":
    main()
