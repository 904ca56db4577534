"""Whether Stretto makes TRL's updates of TRL's samples: the same GRPO on the same rows, step after step.

Accuracy after training is a matter of chance as well; this is not. TRL trains for some steps and records its samples,
gradients and weights (``record_trl.py``); Stretto trains from the same start on those samples.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from stretto.algorithms.advantages import group_credit
from stretto.algorithms.aggregation import aggregation_weights
from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.config.algorithms import LossTerms, loss_ref
from stretto.config.algorithms.losses import ClipLoss
from stretto.config.backends import TorchBackendConfig
from stretto.testing import make_prompt
from stretto.types import Batch, Group, Key, Span, Trajectory

__all__ = ["differences"]

Tensors = Mapping[str, torch.Tensor]


def differences(model: str, folder: Path, *, n: int, lr: float) -> list[dict[str, float]]:
    """For every recorded step the relative differences (of norms) of the clipped gradient, and of what all updates so
    far have changed in the weights."""
    torch.set_num_threads(1)
    backend = TorchBackend({"policy": ModelSpec(path=model)}, TorchBackendConfig(threads=1), 0)
    begin = {t.name: t.data.clone() for t in backend.tensors("policy")}
    rows: list[dict[str, float]] = []
    for step, samples in enumerate(json.loads((folder / "samples.json").read_text())):
        batch = batch_of(samples, n)
        columns = (aggregation_weights(batch, "token_mean"), group_credit(batch).advantages)
        backend.accumulate("policy", batch, columns, loss_ref(ClipLoss(), LossTerms()))
        gradient = {t.name: t.data.clone() for t in backend.gradients("policy")}
        scale = 1 / max(1.0, norm(gradient))
        clipped = {name: scale * data for name, data in gradient.items()}
        backend.update("policy", lr)
        weights = {t.name: t.data for t in backend.tensors("policy")}
        theirs = load_file(folder / f"weights-{step}.safetensors")
        rows.append(
            {
                "gradient": apart(clipped, load_file(folder / f"gradient-{step}.safetensors")),
                "weights": apart(weights, theirs, begin),
            }
        )
    return rows


def batch_of(samples: dict[str, Any], n: int) -> Batch:
    """The recorded rows of a step, ``n`` siblings each."""
    trajectories: list[Trajectory] = []
    for index, prompt in enumerate(samples["prompt"]):
        written, reward = samples["completion"][index], samples["rewards"][index]
        trajectories.append(
            Trajectory(
                key=Key(index // n, index % n),
                token_ids_T=np.array([*prompt, *written], np.int32),
                mask_T=np.array([0] * len(prompt) + [1] * len(written), np.uint8),
                logprobs_T=np.zeros(len(prompt) + len(written), np.float32),
                versions=(Span(0, len(written)),),
                finish="stop",
                rewards={"exact_match": reward},
                reward=reward,
            )
        )
    groups = [
        Group(draw=draw, prompt=make_prompt(uid=f"{draw}"), trajectories=tuple(trajectories[draw * n : draw * n + n]))
        for draw in range(len(trajectories) // n)
    ]
    return Batch(groups=tuple(groups))


def norm(tensors: Tensors) -> float:
    """The norm over all tensors."""
    return math.sqrt(sum(data.double().square().sum().item() for data in tensors.values()))


def apart(ours: Tensors, theirs: Tensors, since: Tensors | None = None) -> float:
    """How far ``ours`` is from ``theirs``, relative to ``theirs`` or to what that is away from ``since``."""
    shared = ours.keys() & theirs.keys()
    moved = {name: theirs[name] - since[name] if since is not None else theirs[name] for name in shared}
    return norm({name: ours[name] - theirs[name] for name in shared}) / norm(moved)
