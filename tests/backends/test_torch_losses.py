"""Policy losses through the real backend: no cut and no rank changes the gradient, and what was not written may hold
NaN. A whole row's ratio, and a choice over the whole batch, are where a cut could be seen."""

from functools import cache

import numpy as np
import pytest
import torch

from stretto.algorithms.aggregation import Denominators, aggregation_weights, denominators
from stretto.algorithms.covariance import selection_column
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.config.algorithms import LossTerms, loss_ref
from stretto.config.algorithms.losses import ClipLoss, GmpoLoss, GspoLoss, KlCovLoss, VespoLoss
from stretto.config.backends import TorchBackendConfig
from stretto.types import Batch, Column, LossRef

USED = [
    ClipLoss(dual_clip=1.5),
    GspoLoss(clip_low=0.03, clip_high=0.03),
    GmpoLoss(),
    VespoLoss(),
    KlCovLoss(top_fraction=0.2),
]
TERMS = LossTerms(kl_coef=0.1, kl_kind="k3_weighted", entropy_coef=0.01)


@cache
def backend_of(budget: int) -> TorchBackend:
    models = {"policy": ModelSpec(path="builtin:tiny-llama-char")}
    return TorchBackend(models, TorchBackendConfig(microbatch_tokens=budget), 0)


def columns_of(batch: Batch, loss) -> list[Column]:
    """All but the weights; NaN wherever nothing was written."""
    (logprobs,) = backend_of(10**6).score("policy", batch, frozenset({"logprobs"}))
    rng = np.random.default_rng(3)

    def column(name: str, values: np.ndarray) -> Column:
        return Column.per_token(name, batch, np.where(batch.mask != 0, values, np.nan).astype(np.float32))

    def near(name: str) -> Column:
        return column(name, logprobs.values + 0.3 * rng.normal(size=batch.num_tokens))

    advantages = column("advantages", np.repeat(rng.normal(size=len(batch.keys)), np.diff(batch.offsets)))
    found = [near("old_logprobs"), near("ref_logprobs"), advantages]
    return found + ([selection_column(batch, logprobs, advantages, loss)] if loss.type == "kl_cov" else [])


def gradient(backend: TorchBackend) -> torch.Tensor:
    found = torch.cat([t.data.double().reshape(-1) for t in backend.gradients("policy")])
    backend.update("policy", 0.0)
    return found


def part_of(batch: Batch, column: Column, part: Batch) -> Column:
    rows = dict(zip(batch.keys, [column.row(i) for i in range(len(batch.keys))], strict=True))
    return Column.per_token(column.name, part, np.concatenate([rows[key] for key in part.keys]))


@pytest.mark.parametrize("loss", USED, ids=lambda loss: loss.type)
def test_no_cut_and_no_rank_changes_the_gradient(random_batch, loss):  # pitfall 29
    batch, ref = random_batch(5, groups=4, siblings=3), loss_ref(loss, TERMS)
    columns = columns_of(batch, loss)
    found = []
    for budget in (10**6, 13):
        weights = aggregation_weights(batch, "seq_mean_token_mean")
        metrics = backend_of(budget).accumulate("policy", batch, (weights, *columns), ref)
        found.append((metrics, gradient(backend_of(budget))))
    (whole_metrics, whole), (cut_metrics, cut) = found
    assert whole.norm() > 0
    assert (cut - whole).norm() <= 2e-6 * whole.norm(), (cut - whole).norm() / whole.norm()
    assert cut_metrics["loss"].value == pytest.approx(whole_metrics["loss"].value, rel=1e-4, abs=1e-6)
    if "clip_frac" in whole_metrics:
        assert 0 < whole_metrics["clip_frac"].value < 1
        assert cut_metrics["clip_frac"] == whole_metrics["clip_frac"]

    ranks = [Batch(groups=batch.groups[:1]), Batch(groups=batch.groups[1:])]
    counts = sum(map(denominators, ranks), Denominators())
    for part in ranks:
        own = aggregation_weights(part, "seq_mean_token_mean", counts=counts)
        backend_of(40).accumulate("policy", part, (own, *(part_of(batch, c, part) for c in columns)), ref)
    summed = gradient(backend_of(40))
    assert (summed - whole).norm() <= 2e-6 * whole.norm(), (summed - whole).norm() / whole.norm()


def test_the_first_update_on_fresh_samples_has_ratio_one(random_batch):
    """Without old log-probs the ratio is exactly 1: no bound of any loss acts, however narrow."""
    batch = random_batch(6, groups=2, siblings=3)
    weights, *columns = aggregation_weights(batch), *columns_of(batch, ClipLoss())
    given = (weights, *(c for c in columns if c.name == "advantages"))
    for name in ("clip", "gspo", "gspo_token", "cpgd"):
        ref = LossRef(use=name, settings={"clip_low": 1e-9, "clip_high": 1e-9})
        metrics = backend_of(40).accumulate("policy", batch, given, ref)
        gradient(backend_of(40))
        assert metrics["clip_frac"].value == metrics["approx_kl"].value == 0.0
