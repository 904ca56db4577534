"""Opens the parts of a run on a Ray cluster: learners and rollers, each in a process of its own, and their watch."""

import asyncio
from pathlib import Path
from typing import Any

from stretto.config.sections import RayCluster
from stretto.errors import WorkerLost
from stretto.plane.ray import RayPlane
from stretto.runtime.build import Job, evaluation_engines
from stretto.runtime.cluster.ray_cluster import Cluster, open_cluster
from stretto.runtime.cluster.seats import Needs, Seat
from stretto.runtime.colocation import Colocation
from stretto.runtime.disposer import Disposer
from stretto.runtime.fleet import Fleet
from stretto.runtime.parts import Parts
from stretto.runtime.remote.handles import RemoteLearners, RemoteRoller
from stretto.runtime.remote.learner_actor import LearnerActor
from stretto.runtime.remote.publication import BucketPublication
from stretto.runtime.remote.roller_actor import RollerActor
from stretto.runtime.remote.workers import RemoteWorker, Watch
from stretto.runtime.roller import Rolling
from stretto.together import together

__all__ = ["open_remote_parts"]

BACKOFF_S = 1.0
"""Before a roller is started again; twice as long each time."""


async def open_remote_parts(
    job: Job, disposer: Disposer, place: tuple[Path, int] | None, *, trains: bool = True
) -> Parts:
    """Everything of a run on the cluster of its recipe. ``place``: the run's folder and the number of the attempt, for
    the groups that rollers record; None: nothing is recorded. The first publication is the driver's."""
    recipe = job.recipe
    assert isinstance(recipe.cluster, RayCluster)
    cluster = await open_cluster(recipe.cluster, disposer)
    plane, size = RayPlane(), recipe.placement.learners
    names = [f"roller-{number}" for number in range(recipe.placement.rollers)]
    beside = [f"evaluator-{number}" for number in range(evaluation_engines(recipe) if trains else 0)]
    seats = await cluster.seats(Needs(learners=size, rollers=len(names) + len(beside)))
    training, serving = seats[:size], list(seats[size:])
    import ray

    threads = getattr(recipe.backend, "threads", 1)
    meeting = Meeting(cluster.folder, size)
    starting = _Starting(cluster, ray.put(job), threads, disposer)  # the job: once a host, however many workers read it
    workers = await together(  # importing takes seconds, so all at once
        [
            *(starting.learner(rank, meeting, plane, seat) for rank, seat in enumerate(training)),
            *(starting.roller(name, place, seat) for name, seat in zip(names, serving, strict=False)),
            *(starting.roller(name, None, seat) for name, seat in zip(beside, serving[len(names) :], strict=True)),
        ]
    )
    watch = Watch(workers, recipe.cluster.heartbeat_s, recipe.cluster.stall_s)
    disposer.own("the watch", watch, watch.close)
    watch.start()
    learners = RemoteLearners(workers[:size])
    publication = BucketPublication(learners)
    revived = [0] * len(names)

    async def revive(number: int, _: Rolling, why: WorkerLost) -> Rolling:
        assert isinstance(recipe.cluster, RayCluster)
        revived[number] += 1
        if revived[number] > recipe.cluster.restarts:
            raise why
        await asyncio.sleep(BACKOFF_S * 2 ** (revived[number] - 1))
        serving[number] = await cluster.again(names[number], serving[number])
        worker = await starting.roller(f"{names[number]}.{revived[number]}", place, serving[number])
        workers.append(worker)
        return RemoteRoller(worker, plane)

    rollers = [RemoteRoller(worker, plane) for worker in workers[size : size + len(names)]]
    evaluators = [RemoteRoller(worker, plane) for worker in workers[size + len(names) :]]
    beside_fleets: list[Fleet] = []
    for evaluator in evaluators:
        alone = Fleet([evaluator])
        beside_fleets.append(disposer.own("an evaluations' fleet", alone, alone.close))
    fleet = Fleet(rollers, revive, publication.renew)
    disposer.own("the fleet", fleet, fleet.close)
    return Parts(
        rollers=fleet,
        learners=learners,
        publication=publication,
        plane=plane,
        colocation=Colocation(fleet, learners, recipe.offload),
        tokenizer=job.tokenizer,
        precision=getattr(recipe.engine, "dtype", "float32"),
        deterministic=recipe.schedule.deterministic,
        evaluators=tuple(beside_fleets),
    )


class Meeting:
    """Where ranks find each other: a file in ``folder`` where all are on this machine, else where rank 0 listens."""

    def __init__(self, folder: Path | None, size: int) -> None:
        self.folder, self.size = folder, size
        self._told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if folder is not None or size == 1:
            self.tell("" if folder is None else f"file:{folder / 'ranks'}")

    def tell(self, place: str) -> None:
        """Where it is."""
        self._told.set_result(place)

    async def place(self) -> str:
        """Where it is, once that is known."""
        return await asyncio.shield(self._told)


class _Starting:
    """Starts workers of a job, owned by ``disposer``. ``threads``: a learner's; 0: its share of its host's cores."""

    def __init__(self, cluster: Cluster, job: Any, threads: int, disposer: Disposer) -> None:
        self._cluster, self._job, self._threads, self._disposer = cluster, job, threads, disposer

    async def learner(self, rank: int, meeting: Meeting, plane: RayPlane, seat: Seat) -> RemoteWorker:
        """A rank that trains, with its part of the Models."""
        worker = await self._make(f"learner-{rank}", LearnerActor, (self._job, rank, meeting.size, plane), seat)
        if rank == 0 and meeting.folder is None and meeting.size > 1:
            meeting.tell(await self._cluster.within(worker.name, worker.call("host_meeting"), "met"))
        await self._cluster.within(worker.name, worker.call("open", await meeting.place()), "open")
        return worker

    async def roller(self, name: str, place: tuple[Path, int] | None, seat: Seat) -> RemoteWorker:
        """A roller with its engine."""
        worker = await self._make(name, RollerActor, (self._job, name, place), seat)
        await self._cluster.within(name, worker.call("open"), "open")
        return worker

    async def _make(self, name: str, kind: type, args: tuple[Any, ...], seat: Seat) -> RemoteWorker:
        threads = self._threads or seat.num_threads if kind is LearnerActor else 1
        actor = await self._cluster.make(kind, args, seat, threads)
        worker = RemoteWorker(name, actor, self._cluster.name_of(seat.host))

        async def close() -> None:
            try:
                if not worker.lost:
                    await worker.call("close")
            finally:
                worker.end("the run is over")

        self._disposer.own(name, worker, close, deadline_s=30.0, pids=lambda: (worker.pid,) if worker.pid else ())
        await self._cluster.within(name, worker.beat())
        return worker
