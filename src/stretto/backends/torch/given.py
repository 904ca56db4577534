"""What a loss is given beside the forward pass: Columns of the whole batch, as tensors on the device."""

import numpy as np
import torch
from torch import Tensor

from stretto.errors import ConfigError
from stretto.types import Batch, Column

__all__ = ["SAMPLED", "SAMPLER", "given_columns"]

SAMPLER, SAMPLED = "sampler:logprobs", "sampler:sampled"
"""Names of what the sampler said of each token, and of whether there was one."""


def given_columns(batch: Batch, columns: tuple[Column, ...], device: torch.device) -> dict[str, Tensor]:
    """The Columns as tensors [sum T], with what the sampler said beside them.

    ConfigError for a column that is not per token, or of another batch, and where there are no ``weights``.
    """
    given: dict[str, Tensor] = {}
    for column in columns:
        if column.offsets is None or column.keys != batch.keys:
            raise ConfigError(
                f"the column {column.name!r} is not a per-token column of the batch that is trained on. "
                "Make it with Column.per_token from this batch."
            )
        given[column.name] = torch.from_numpy(np.asarray(column.values, np.float32)).to(device)
    if "weights" not in given:
        raise ConfigError(
            f"an update needs the column 'weights', and got {', '.join(sorted(given)) or 'none'}. "
            "Make it with stretto.algorithms.aggregation.aggregation_weights."
        )
    rows = batch.trajectories
    sampler = np.concatenate([t.logprobs_T for t in rows]) if rows else np.zeros(0, np.float32)
    # A demonstration was written by no version of the policy, and has no sampler to be compared with.
    sampled = np.repeat([float(bool(t.versions)) for t in rows], np.diff(batch.offsets))
    given[SAMPLER] = torch.from_numpy(sampler.astype(np.float32)).to(device)
    given[SAMPLED] = torch.from_numpy(sampled.astype(np.float32)).to(device)
    return given
