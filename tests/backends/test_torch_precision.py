"""bfloat16 on the trainer's side, the head in float32, and micro-batches that a limit of memory makes smaller."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError
from stretto.types import Batch, Column, LossRef

BUILTIN = "builtin:tiny-llama-char"
LOGPROBS = frozenset({"logprobs"})


def backend_of(path=BUILTIN, **config) -> TorchBackend:
    return TorchBackend({"policy": ModelSpec(path=str(path))}, TorchBackendConfig(**config), 0)


def sharpened(backend: TorchBackend) -> TorchBackend:
    """Fresh weights give nearly uniform logits, which hide what a product loses."""
    for tensor in backend.tensors("policy"):
        if tensor.name == "lm_head.weight":
            tensor.data.mul_(20)
    return backend


def of_twenty(batch: Batch) -> Batch:
    """The same with the tokens of the built-in model."""
    return replace(
        batch,
        groups=tuple(
            replace(
                g,
                trajectories=tuple(
                    replace(t, token_ids_T=(t.token_ids_T % 20).astype(np.int32)) for t in g.trajectories
                ),
            )
            for g in batch.groups
        ),
    )


def sampled_by(batch: Batch, column: Column) -> Batch:
    """``batch`` as if a sampler had given these log-probs."""
    rows = iter(range(len(batch.keys)))
    return replace(
        batch,
        groups=tuple(
            replace(g, trajectories=tuple(replace(t, logprobs_T=column.row(next(rows))) for t in g.trajectories))
            for g in batch.groups
        ),
    )


def test_a_float32_head_narrows_the_gap_that_is_reported(random_batch):  # pitfall 20
    batch = of_twenty(random_batch(3, groups=6, longest=40))
    (exact,) = sharpened(backend_of()).score("policy", batch, LOGPROBS)
    batch = sampled_by(batch, exact)
    ones = Column.per_token("advantages", batch, np.ones(batch.num_tokens, np.float32))
    gaps = {}
    for name, config in {
        "float32": {},
        "bfloat16": {"dtype": "bfloat16"},
        "float32 head": {"dtype": "bfloat16", "head_dtype": "float32"},
        "bfloat16 head alone": {"head_dtype": "bfloat16"},
    }.items():
        backend = sharpened(backend_of(**config))
        metrics = backend.accumulate("policy", batch, (aggregation_weights(batch), ones), LossRef(use="clip"))
        gaps[name] = metrics["sampler_gap"].value
        assert metrics["sampler_gap_max"].value >= gaps[name]
        assert backend.update("policy", 1e-4).skipped is None
    assert gaps["float32"] < 1e-6 < gaps["float32 head"]
    assert gaps["float32 head"] < 0.9 * gaps["bfloat16"]
    assert gaps["float32"] < gaps["bfloat16 head alone"], "each part may be lowered alone"


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_a_limit_of_memory_makes_smaller_micro_batches_and_the_same_scores(model_folders, random_batch, family):
    batch = random_batch(3, groups=8, siblings=3, longest=30)
    path = model_folders[family]
    free, tight = backend_of(path), backend_of(path, microbatch_memory="200KiB")
    most = {
        b: [b._most_tokens(b._models["policy"], batch, backward=back) for back in (True, False)] for b in (free, tight)
    }
    assert most[free] == [4096, 4096]
    assert most[tight][0] < most[tight][1] < 4096
    np.testing.assert_allclose(*(b.score("policy", batch, LOGPROBS)[0].values for b in (free, tight)), atol=1e-5)
    with pytest.raises(ConfigError, match=r"microbatch_memory=100 B is too little: one token takes"):
        backend_of(path, microbatch_memory=100)
