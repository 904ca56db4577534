"""How far several ranks are from one process: gradients, weights and log-probs after five steps, in float32.

Every row trains the built-in model on the same seven ragged groups a step, which no number of ranks divides. Errors are
norms of differences in parts of the norm; log-probs in nats. The first row is one process with smaller micro-batches:
what another order of sums alone does.

Prediction (written before the first run): gradients of the first step within 1e-6 for every layout, as for the smaller
micro-batches; what five steps of AdamW changed within 1e-3, since it divides small gradients by themselves; log-probs
within 2e-5.
"""

import multiprocessing as mp
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.ranks import Ranks, open_ranks
from stretto.config.backends import TorchBackendConfig
from stretto.plan.cluster import Layout
from stretto.types import Batch, Column, Group, Key, LossRef, Prompt, Span, Trajectory
from table import print_table, write_result

MODEL, VOCAB, STEPS, LR = "builtin:tiny-llama-char", 90, 5, 1e-3
LAYOUTS = {
    "1, smaller micro-batches": Layout(),
    "2": Layout(shards=2),
    "4": Layout(shards=4),
    "2 x 2": Layout(replicas=2, shards=2),
}


@dataclass(frozen=True)
class Outcome:
    """The gradients of the first step, the weights before and after, and log-probs after."""

    gradient: np.ndarray
    start: np.ndarray
    end: np.ndarray
    logprobs: np.ndarray


def make_batch(seed: int, groups: int = 7, siblings: int = 3) -> Batch:
    """Random tokens; lengths differ by a factor of ten."""
    rng = np.random.default_rng(seed)
    made = []
    for draw in range(groups):
        prompt = rng.integers(3, VOCAB, rng.integers(2, 12)).astype(np.int32)
        rows = []
        for sample in range(siblings):
            written = int(rng.integers(3, 40))
            ids = np.concatenate([prompt, rng.integers(3, VOCAB, written).astype(np.int32)])
            mask = np.repeat(np.array([0, 1], np.uint8), (len(prompt), written))
            rows.append(
                Trajectory(
                    key=Key(draw, sample),
                    token_ids_T=ids,
                    mask_T=mask,
                    logprobs_T=(-4.0 * mask).astype(np.float32),
                    versions=(Span(0, written),),
                    finish="stop",
                    temperature=1.0,
                )
            )
        task = Prompt(uid=str(draw), text="", token_ids=prompt)
        made.append(Group(draw=draw, prompt=task, trajectories=tuple(rows)))
    return Batch(groups=tuple(made))


def train(ranks: Ranks | None, microbatch_tokens: int = 300) -> Outcome:
    """Five steps of the clipped policy gradient."""
    config = TorchBackendConfig(microbatch_tokens=microbatch_tokens)
    backend = TorchBackend({"policy": ModelSpec(path=MODEL)}, config, 0, ranks=ranks)
    start, first = weights(backend), np.zeros(0)
    for step in range(STEPS):
        batch = make_batch(step)
        advantages = np.random.default_rng(step).normal(size=batch.num_tokens).astype(np.float32)
        columns = aggregation_weights(batch, "token_mean"), Column.per_token("advantages", batch, advantages)
        backend.accumulate("policy", batch, columns, LossRef(use="clip"))
        if step == 0:
            first = np.concatenate([t.data.double().numpy().ravel() for t in backend.gradients("policy")])
        backend.update("policy", LR)
    (logprobs,) = backend.score("policy", make_batch(0), frozenset({"logprobs"}))
    return Outcome(first, start, weights(backend), logprobs.values)


def weights(backend: TorchBackend) -> np.ndarray:
    return np.concatenate([t.data.double().numpy().ravel() for t in backend.tensors("policy")])


def run_rank(layout: Layout, rank: int, folder: Path) -> None:
    """What one process of several does; the first one keeps what came of it."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), layout.size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=layout.size)
    outcome = train(open_ranks(layout, torch.device("cpu")))
    if rank == 0:
        np.savez(folder / "outcome.npz", **vars(outcome))
    dist.destroy_process_group()


def outcome_of(layout: Layout) -> Outcome:
    """Of as many processes as it has ranks."""
    if layout.size == 1:
        return train(None, microbatch_tokens=60)
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        processes = [context.Process(target=run_rank, args=(layout, r, Path(folder))) for r in range(layout.size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return Outcome(**np.load(Path(folder) / "outcome.npz"))


def gap(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def main() -> None:
    """All layouts against one process."""
    torch.set_num_threads(1)
    one = train(None)
    rows = []
    for name, layout in LAYOUTS.items():
        found = outcome_of(layout)
        rows.append(
            {
                "ranks": name,
                "gradient": gap(found.gradient, one.gradient),
                "weights": gap(found.end, one.end),
                "change of weights": gap(found.end - found.start, one.end - one.start),
                "log-probs": float(np.abs(found.logprobs - one.logprobs).max()),
            }
        )
    print_table("errors against one process", rows)
    write_result("ranks", rows)


if __name__ == "__main__":
    main()
