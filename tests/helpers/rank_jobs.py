"""What a rank of the tests does, and the processes in which several of them do it."""

import hashlib
import multiprocessing as mp
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.ranks import Ranks, open_ranks
from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError
from stretto.plan.cluster import Layout
from stretto.types import Batch, Column, LossRef
from stretto.workflows.preferences import preferred


def columns_of(batch: Batch, **extra: np.ndarray) -> tuple[Column, ...]:
    rows = [
        np.random.default_rng([t.key.draw, t.key.sample]).normal(size=(4, len(t.mask_T))) for t in batch.trajectories
    ]
    advantages, returns, ref, old = np.concatenate(rows, axis=1) if rows else np.zeros((4, 0))
    values = {"advantages": advantages, "returns": returns, "ref_logprobs": -np.abs(ref), "old_values": old, **extra}
    return (
        aggregation_weights(batch, "token_mean"),
        *(Column.per_token(name, batch, v.astype(np.float32)) for name, v in values.items()),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """Models, a config, and one loss for each Model that is trained, step by step."""

    models: Mapping[str, ModelSpec]
    losses: Mapping[str, LossRef]
    batches: tuple[Batch, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    columns: Callable[[Batch], tuple[Column, ...]] = columns_of
    poisoned: int = -1
    """The step in which an advantage of the first draw is not finite."""
    times: int = 1
    """How often each batch is accumulated before an update."""
    lr: float = 1e-3

    def backend(self, ranks: Ranks | None) -> TorchBackend:
        return TorchBackend(self.models, TorchBackendConfig(**self.config), 0, ranks=ranks)


def pair_columns(batch: Batch) -> tuple[Column, ...]:
    """What losses of pairs are given."""
    columns = {column.name: column for column in columns_of(batch)}
    return aggregation_weights(batch, "prompt_mean"), preferred(batch), columns["ref_logprobs"]


def trained(backend: TorchBackend, case: Case) -> dict[str, Any]:
    """Every step of ``case``: metrics, gradients, reports."""
    said: dict[str, Any] = {"metrics": [], "gradients": [], "norms": [], "skipped": []}
    for step, batch in enumerate(case.batches):
        columns = case.columns(batch)
        if step == case.poisoned:
            next(c for c in columns if c.name == "advantages").values[: batch.offsets[1]] = np.nan
        for model, loss in case.losses.items():
            metrics = {}
            for _ in range(case.times):
                metrics = backend.accumulate(model, batch, columns, loss)
            said["metrics"].append({name: metric.value for name, metric in metrics.items()})
            said["gradients"].append({t.name: t.data.clone().numpy() for t in backend.gradients(model)})
            report = backend.update(model, case.lr)
            said["norms"].append(report.metrics["grad_norm"].value if "grad_norm" in report.metrics else None)
            said["skipped"].append(report.skipped)
    return said


def stories(ranks: Ranks | None, cases: Mapping[str, Case], folder: Path) -> dict[str, dict[str, Any]]:
    """All of them, one after the other."""
    return {name: story(ranks, case, folder / name) for name, case in cases.items()}


def story(ranks: Ranks | None, case: Case, folder: Path) -> dict[str, Any]:
    """Train, look, save and export."""
    backend = case.backend(ranks)
    start, before = weights(backend, case), scores(backend, case)
    said = trained(backend, case)
    said |= {"start": start, "before": before, "after": scores(backend, case), "weights": weights(backend, case)}
    said["hashes"] = {model: backend.weights_hash(model) for model in case.models}
    folder.mkdir(exist_ok=True, parents=True)
    backend.capture(copy=True)(folder)
    for model in case.models:
        backend.export(model, folder / "export" / model)
    if "reference" in case.models:
        backend.copy("policy", "reference")
        said["copied"] = backend.weights_hash("reference")
    for model in case.losses:
        backend.reset_optimizer(model)
    said["again"] = trained(backend, replace(case, batches=case.batches[:1], poisoned=-1))["gradients"]
    return said


def resumptions(ranks: Ranks | None, cases: Sequence[tuple[Case, Path, Path]]) -> list[dict[str, Any]]:
    """All of them: a case, where it was saved, and where it is saved now."""
    return [resumed(ranks, *each) for each in cases]


def resumed(ranks: Ranks | None, case: Case, saved: Path, folder: Path) -> dict[str, Any]:
    """Go on from ``saved``, and save."""
    backend = case.backend(ranks)
    backend.load(saved)
    loaded = weights(backend, case)
    said = trained(backend, case)
    folder.mkdir(exist_ok=True, parents=True)
    backend.capture()(folder)
    return said | {"loaded": loaded, "weights": weights(backend, case)}


def released(ranks: Ranks | None, case: Case, folder: Path) -> tuple[list[Any], list[Any]]:
    """Hashes and norms of two backends, one of which gives its memory away between steps, and is saved meanwhile."""
    found: list[list[Any]] = []
    for moves in (False, True):
        backend, said = case.backend(ranks), list[Any]()
        for batch in case.batches:
            said += trained(backend, replace(case, batches=(batch,)))["norms"]
            if moves:
                backend.set_memory("optimizer_released")
                scores(backend, case)
                backend.set_memory("weights_released")
            at = folder / f"{moves}{len(said)}"
            at.mkdir(parents=True, exist_ok=True)
            backend.capture()(at)
            backend.set_memory("awake")
            if ranks is not None:
                names = sorted(file.name for file in at.glob(f"*.{ranks.rank}of*"))
                assert names
                said += [hashlib.sha256((at / name).read_bytes()).hexdigest() for name in names]
        found.append([*said, *(backend.weights_hash(model) for model in case.models)])
    return found[0], found[1]


def refused(ranks: Ranks | None) -> list[str]:
    """Why configs and layouts are."""
    models = {"policy": ModelSpec(path="builtin:tiny-llama-char")}
    device = torch.device("cpu")
    tries: list[Callable[[], object]] = [
        lambda: TorchBackend(models, TorchBackendConfig(optimizer="adamw8bit"), 0, ranks=ranks),
        lambda: TorchBackend(models, TorchBackendConfig(), 0, offload_to="disk", ranks=ranks),
        lambda: open_ranks(Layout(replicas=2, shards=3), device),
        lambda: open_ranks(Layout(tensor=2), device),
    ]
    said = list[str]()
    for each in tries:
        try:
            each()
        except ConfigError as error:
            said.append(str(error))
    return said


def outside(ranks: Ranks | None) -> list[Any]:
    """Which ranks of the world are ranks of a smaller set, and that one of them alone trains as one process."""
    some = open_ranks(Layout(), torch.device("cpu"), members=[1])
    backend = TorchBackend({"policy": ModelSpec(path="builtin:tiny-llama-char")}, TorchBackendConfig(), 0, ranks=some)
    return [None if some is None else (some.rank, some.size), backend.weights_hash("policy")]


def scores(backend: TorchBackend, case: Case) -> dict[str, np.ndarray]:
    found = {}
    for model, spec in case.models.items():
        want = {"values"} if spec.value_head else {"logprobs", "entropy"}
        for column in backend.score(model, case.batches[0], frozenset(want)):
            found[f"{model}.{column.name}"] = column.values
    return found


def weights(backend: TorchBackend, case: Case) -> dict[str, dict[str, np.ndarray]]:
    return {model: {t.name: t.data.clone().numpy() for t in backend.tensors(model)} for model in case.models}


def on_ranks(layout: Layout, folder: Path, job: Callable[..., Any], *args: Any) -> list[Any]:
    """``job(ranks, *args)`` in as many processes as ``layout`` has ranks: what each returns, by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    processes = [context.Process(target=_rank, args=(layout, rank, folder, job, args)) for rank in range(layout.size)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(120)
    finally:
        for process in processes:
            process.kill()
            process.join()
    said = [torch.load(file, weights_only=False) for file in sorted(folder.glob("said.*"))]
    failures = [each for each in said if isinstance(each, str)]
    assert not failures, "\n".join(failures)
    assert len(said) == layout.size, "a rank said nothing"
    return said


def _rank(layout: Layout, rank: int, folder: Path, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), layout.size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=layout.size)
    try:
        said = job(open_ranks(layout, torch.device("cpu")), *args)
    except Exception:
        said = traceback.format_exc()
    torch.save(said, folder / f"said.{rank}")
    if not isinstance(said, str):
        dist.destroy_process_group()
