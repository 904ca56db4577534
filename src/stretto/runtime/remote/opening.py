"""Opens the parts of a run on a Ray cluster: learners first, then rollers, each in a process of its own."""

from pathlib import Path
from typing import Any

from stretto.config.sections import RayCluster
from stretto.plane.ray import RayPlane
from stretto.runtime.build import Job, evaluation_engines
from stretto.runtime.cluster.ray_cluster import Cluster, open_cluster
from stretto.runtime.colocation import Colocation
from stretto.runtime.disposer import Disposer
from stretto.runtime.fleet import Fleet
from stretto.runtime.parts import Parts
from stretto.runtime.remote.handles import RemoteLearners, RemoteRoller, answer
from stretto.runtime.remote.learner_actor import LearnerActor
from stretto.runtime.remote.publication import BucketPublication
from stretto.runtime.remote.roller_actor import RollerActor
from stretto.together import together

__all__ = ["open_remote_parts"]


async def open_remote_parts(
    job: Job, disposer: Disposer, place: tuple[Path, int] | None, *, trains: bool = True
) -> Parts:
    """Everything of a run on the cluster of its recipe. ``place``: the run's folder and the number of the attempt, for
    the groups that rollers record; None: nothing is recorded. The first publication is the driver's."""
    recipe = job.recipe
    assert isinstance(recipe.cluster, RayCluster)
    cluster = await open_cluster(recipe.cluster, disposer)
    import ray

    shared = ray.put(job)  # once a host, however many workers read it
    plane, size = RayPlane(), recipe.placement.learners
    ranks = [
        _start(cluster, f"learner-{rank}", LearnerActor, (shared, rank, size, plane), disposer) for rank in range(size)
    ]
    names = [f"roller-{number}" for number in range(recipe.placement.rollers)]
    beside = [f"evaluator-{number}" for number in range(evaluation_engines(recipe) if trains else 0)]
    rolling = [_start(cluster, name, RollerActor, (shared, name, place), disposer) for name in names]
    rolling += [_start(cluster, name, RollerActor, (shared, name, None), disposer) for name in beside]
    actors = await together([*ranks, *rolling])  # importing takes seconds, so all at once
    learners = RemoteLearners(actors[:size])
    found = [RemoteRoller(name, plane, a) for name, a in zip([*names, *beside], actors[size:], strict=True)]
    rollers, evaluators = found[: len(names)], found[len(names) :]
    fleet = Fleet(rollers)
    return Parts(
        rollers=fleet,
        learners=learners,
        publication=BucketPublication(learners),
        plane=plane,
        colocation=Colocation(fleet, learners, recipe.offload),
        tokenizer=job.tokenizer,
        precision=getattr(recipe.engine, "dtype", "float32"),
        deterministic=recipe.schedule.deterministic,
        evaluators=tuple(Fleet([evaluator]) for evaluator in evaluators),
    )


async def _start(cluster: Cluster, name: str, kind: type, args: tuple[Any, ...], disposer: Disposer) -> Any:
    """An actor that is up and has opened what it needs."""
    actor = await cluster.start(name, kind, args, disposer, close=lambda a: answer(a.close.remote()))
    await answer(actor.open.remote())
    return actor
