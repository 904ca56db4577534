"""How token losses become one number: a weight per token, computed over the whole update before any of it is cut.

A loss is ``sum(weight_t * loss_t)``, so micro-batches, packing and ranks change nothing but rounding.
"""

import numpy as np

from stretto.config.algorithms import Aggregation
from stretto.types import Batch, Column

__all__ = ["aggregation_weights"]


def aggregation_weights(batch: Batch, aggregate: Aggregation = "token_mean") -> Column:
    """The Column ``weights`` [sum T, float64]: 0 where the policy did not write; rows without a written token count for
    nothing, and a batch without any has all weights 0.

    token_mean: 1 / written tokens. seq_mean_token_mean: 1 / (written tokens of the row x rows).
    seq_mean_token_sum: 1 / rows. The parts of an attempt are one row here.
    """
    rows = int(batch.attempts.max(initial=-1)) + 1
    row = np.repeat(batch.attempts, np.diff(batch.offsets))
    written_B = np.bincount(row, weights=batch.mask, minlength=rows)
    num_rows = max(int((written_B > 0).sum()), 1)
    if aggregate == "token_mean":
        weight_B = np.full(rows, 1.0 / max(batch.num_written, 1))
    elif aggregate == "seq_mean_token_mean":
        weight_B = 1.0 / (np.maximum(written_B, 1.0) * num_rows)
    else:
        weight_B = np.full(rows, 1.0 / num_rows)
    return Column.per_token("weights", batch, weight_B[row] * batch.mask)
